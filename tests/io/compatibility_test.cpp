// Files cross-checked with the Python package safetensors, where it is installed (tests/peers/python.sh).
#include <gtest/gtest.h>

#include "io/safetensors.h"
#include "io/sharded_writer.h"
#include "io_test_support.h"
#include "support/python.h"

namespace dsmoe::io {
namespace {

using testing::kNotInstalled;

int run_script(const std::string& arguments) { return testing::run_python("io/check_with_safetensors.py", arguments); }

// The rule of check_with_safetensors.py.
std::string pattern(const std::string& name, std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>((7 * i + name.size()) % 251);
  return bytes;
}

void save_pattern(const std::filesystem::path& folder) {
  const std::vector<TensorSpec> specs{{"BF16_2_3", DType::kBF16, {2, 3}}, {"F32_5", DType::kF32, {5}},
                                      {"F16_1_4", DType::kF16, {1, 4}},   {"U8_3", DType::kU8, {3}},
                                      {"I64", DType::kI64, {}},           {"I32_2_1_2", DType::kI32, {2, 1, 2}},
                                      {"F32_0_3", DType::kF32, {0, 3}}};
  ShardedWriter writer(folder, specs, 32);
  ASSERT_EQ(writer.shards(), 3u);
  for (const TensorSpec& spec : specs) {
    const std::string bytes = pattern(spec.name, spec.bytes());
    writer.append(spec.name, std::as_bytes(std::span(bytes)));
  }
  writer.finish();
}

TEST(PeerSafetensors, ReadsWhatIsWrittenHere) {
  TempFolder dir;
  save_pattern(dir.path());
  const int status = run_script("read " + dir.path().string());
  if (status == kNotInstalled) GTEST_SKIP() << "no python3 with safetensors and numpy";
  EXPECT_EQ(status, 0);

  std::string shard = read_bytes(dir / "model-00001-of-00003.safetensors");
  shard.back() = static_cast<char>(shard.back() ^ 1);
  write_bytes(dir / "model-00001-of-00003.safetensors", shard);
  EXPECT_EQ(run_script("read " + dir.path().string() + " 2>/dev/null"), 1) << "the script does not see a wrong bit";
}

TEST(PeerSafetensors, WritesWhatIsReadHere) {
  TempFolder dir;
  const int status = run_script("write " + (dir / "x.safetensors").string());
  if (status == kNotInstalled) GTEST_SKIP() << "no python3 with safetensors and numpy";
  ASSERT_EQ(status, 0);
  const auto file = SafetensorsFile::open(dir / "x.safetensors");
  EXPECT_EQ(file.metadata(), (Metadata{{"made by", "python"}}));
  const std::vector<TensorSpec> specs{{"f32", DType::kF32, {2, 3}},      {"half", DType::kF16, {5}},
                                      {"int32", DType::kI32, {1, 2, 3}}, {"integer64", DType::kI64, {}},
                                      {"bytes", DType::kU8, {3}},        {"nothing", DType::kF32, {0, 4}}};
  for (const TensorSpec& spec : specs) {
    const Tensor t = file.tensor(spec.name);
    EXPECT_EQ(t.dtype(), spec.dtype) << spec.name;
    EXPECT_EQ(t.shape(), spec.shape) << spec.name;
    EXPECT_EQ(std::string(static_cast<const char*>(t.raw()), t.bytes()), pattern(spec.name, t.bytes())) << spec.name;
  }
  EXPECT_EQ(file.names().size(), specs.size() + 1) << "and a tensor of float64, which cannot be asked for";
  EXPECT_THROW(file.tensor("double64"), Error);
}

}  // namespace
}  // namespace dsmoe::io
