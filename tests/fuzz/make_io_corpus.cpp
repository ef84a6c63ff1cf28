// Writes the seeds for safetensors_fuzz, index_fuzz and gguf_fuzz: small files that are right ("ok-") or wrong in one way
// ("bad-").
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "dsmoe/error.h"
#include "io/atomic_file.h"
#include "io/checkpoint_index.h"
#include "io/gguf_writer.h"
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

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string raw_text(std::string_view text) { return raw<std::uint64_t>(text.size()) + std::string(text); }

void write_gguf_files(const std::filesystem::path& folder) {
  GgufMetadata m;
  m.set("general.architecture", GgufValue::string("deepseek"));
  m.set("deepseek.block_count", GgufValue::u32(2));
  m.set("deepseek.rope.freq_base", GgufValue::f32(10000));
  m.set("tokenizer.ggml.add_bos_token", GgufValue::boolean(true));
  m.set("tokenizer.ggml.tokens", GgufValue::strings(std::vector<std::string>{"a", "\xc4\xa0", ""}));
  m.set("tokenizer.ggml.token_type", GgufValue::i32s(std::vector<std::int32_t>{1, 3, -1}));
  const auto write = [&](const char* name, const GgufMetadata& metadata, const std::vector<TensorSpec>& specs) {
    GgufWriter writer(folder / name, metadata, specs);
    for (const TensorSpec& spec : specs) {
      const std::string zeros(spec.bytes(), '\0');
      writer.append(spec.name, std::as_bytes(std::span(zeros)));
    }
    writer.finish();
  };
  write("ok-empty", GgufMetadata(), {});
  write("ok-metadata", m, {});
  write("ok-tensors", m,
        {{"output.weight", DType::kQ8_0, {2, 32}},
         {"n", DType::kF32, {3}},
         {"k", DType::kQ4_K, {1, 256}},
         {"e", DType::kBF16, {0}}});
  const std::string head = "GGUF" + raw<std::uint32_t>(3), none = raw<std::uint64_t>(0), one = raw<std::uint64_t>(1);
  const auto tensor = [&](std::uint32_t type, std::uint64_t offset) {
    return raw_text("t") + raw<std::uint32_t>(1) + raw<std::uint64_t>(8) + raw(type) + raw(offset);
  };
  const auto file = [&](const char* name, const std::string& bytes) { write_file_atomically(folder / name, bytes); };
  const std::string data(128, 'x');
  file("ok-version-2", "GGUF" + raw<std::uint32_t>(2) + none + one + raw_text("k") + raw<std::uint32_t>(0) + "v");
  file("bad-magic", "GGML" + raw<std::uint32_t>(3) + none + none);
  file("bad-version", "GGUF" + raw<std::uint32_t>(1) + none + none);
  file("bad-counts", head + std::string(16, '\xff'));
  file("bad-string", head + none + one + std::string(8, '\xff'));
  file("bad-array",
       head + none + one + raw_text("k") + raw<std::uint32_t>(9) + raw<std::uint32_t>(8) + raw<std::uint64_t>(1u << 30));
  file("bad-value-type", head + none + one + raw_text("k") + raw<std::uint32_t>(99) + data);
  file("bad-alignment", head + none + one + raw_text("general.alignment") + raw<std::uint32_t>(4) + raw<std::uint32_t>(24));
  file("bad-offset", head + one + none + tensor(0, 1 << 20) + data);
  file("bad-type", head + one + none + tensor(5, 0) + data);
  file("bad-twice", head + raw<std::uint64_t>(2) + none + tensor(0, 0) + tensor(0, 32) + data);
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
  std::filesystem::create_directories(folder / "gguf");
  dsmoe::io::write_gguf_files(folder / "gguf");
  return 0;
}
