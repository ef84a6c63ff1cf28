// Writes the seeds for safetensors_fuzz and index_fuzz: small files that are right ("ok-") or wrong in one way ("bad-").
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "dsmoe/error.h"
#include "io/atomic_file.h"
#include "io/checkpoint_index.h"
#include "io/safetensors_writer.h"

namespace dsmoe::io {
namespace {

void write_ok_files(const std::filesystem::path& folder) {
  const std::vector<TensorSpec> all{
      {"f32", DType::kF32, {2, 3}}, {"bf16", DType::kBF16, {4}},   {"f16", DType::kF16, {1, 2}}, {"i64", DType::kI64, {}},
      {"i32", DType::kI32, {1}},    {"none", DType::kF32, {0, 7}}, {"u8", DType::kU8, {3}}};
  const auto write = [&](const char* name, const std::vector<TensorSpec>& specs) {
    SafetensorsWriter writer(folder / name, specs);
    for (const TensorSpec& spec : specs) writer.write(spec.name, Tensor::zeros(spec.dtype, spec.shape));
    writer.finish();
  };
  write("ok-empty", {});
  write("ok-one", {{"model.embed_tokens.weight", DType::kBF16, {3, 2}}});
  write("ok-all", all);
}

void write_raw(const std::filesystem::path& path, const std::string& header, std::size_t data) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  write_file_atomically(path, bytes + header + std::string(data, 'x'));
}

void write_raw_files(const std::filesystem::path& folder) {
  const auto one = [](const char* shape, const char* offsets) {
    return std::string(R"({"a":{"dtype":"U8","shape":)") + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  write_raw(folder / "ok-other-dtypes",
            R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F4","shape":[2,1,1,1,1],)"
            R"("data_offsets":[8,9]},"__metadata__":{"k":"\u00e4"}})",
            9);
  write_raw(folder / "ok-unaligned",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
            5);
  write_raw(folder / "bad-hole", one("[1]", "[1,2]"), 2);
  write_raw(folder / "bad-size", one("[2]", "[0,1]"), 1);
  write_raw(folder / "bad-truncated", one("[4]", "[0,4]"), 3);
  write_raw(folder / "bad-overflow", one("[4294967296,4294967296,4294967296]", "[0,0]"), 0);
  write_raw(folder / "bad-overlap",  // as many bytes as the two tensors need
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
            4);
  write_raw(folder / "bad-twice",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2);
  write_raw(folder / "bad-deep", R"({"a":[[[[[[[[)", 0);
  write_file_atomically(folder / "bad-length", std::string(16, '\xff'));
}

void write_indexes(const std::filesystem::path& folder) {
  write_file_atomically(folder / "ok-two", format_index({{"a", "x.safetensors"}, {"b", "y.safetensors"}}, 8));
  write_file_atomically(folder / "ok-other-fields", R"({"x":[{}],"weight_map":{"a\u00e4":"m-1.safetensors"}})");
  write_file_atomically(folder / "bad-path", R"({"weight_map":{"a":"../x.safetensors"}})");
  write_file_atomically(folder / "bad-twice", R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})");
  write_file_atomically(folder / "bad-number", R"({"metadata":1e5,"weight_map":{"a":-1}})");
  write_file_atomically(folder / "bad-empty", R"({"metadata":{"total_size":0},"weight_map":{}})");
}

}  // namespace
}  // namespace dsmoe::io

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_io_corpus FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder(argv[1]);
  std::filesystem::create_directories(folder / "safetensors");
  std::filesystem::create_directories(folder / "index");
  dsmoe::io::write_ok_files(folder / "safetensors");
  dsmoe::io::write_raw_files(folder / "safetensors");
  dsmoe::io::write_indexes(folder / "index");
  return 0;
}
