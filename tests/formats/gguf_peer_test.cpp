// Files cross-checked with the Python package gguf, where it is installed (tests/peers/python.sh).
#include <gtest/gtest.h>

#include "formats/gguf_export.h"
#include "formats/model_source.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "io/io_test_support.h"
#include "ops/quantize.h"
#include "support/python.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using io::GgufFile;
using io::GgufValue;
using testing::kNotInstalled;
using testing::run_python;

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                            DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
const std::vector<std::string> kTexts = {"a", "", "é"};
const std::vector<std::int32_t> kNumbers = {-1, 0, 2147483647};

Tensor as_numbers(const Tensor& t) {
  if (!is_quantized(t.dtype())) return t.to(DType::kF32);
  Tensor numbers(DType::kF32, t.shape());
  ops::dequantize_row(t.dtype(), t.raw(), numbers.span<float>());
  return numbers;
}

int check(const std::string& what, const std::filesystem::path& path, const char* rest = "") {
  return run_python("formats/check_with_gguf.py", what + " '" + path.string() + "'" + rest);
}

// What check_with_gguf.py expects: one tensor of every type, and its numbers beside it.
void write_all_types(const std::filesystem::path& path) {
  io::GgufMetadata metadata;
  metadata.set("general.architecture", GgufValue::string("deepseek"));
  metadata.set("test.u32", GgufValue::u32(4000000000u));
  metadata.set("test.f32", GgufValue::f32(-0.375f));
  metadata.set("test.bool", GgufValue::boolean(true));
  metadata.set("test.string", GgufValue::string("snö 你"));
  metadata.set("test.strings", GgufValue::strings(kTexts));
  metadata.set("test.i32s", GgufValue::i32s(kNumbers));
  std::vector<io::TensorSpec> specs;
  std::vector<Tensor> tensors;
  const auto add = [&](const std::string& name, const Tensor& t) {
    specs.push_back({name, t.dtype(), t.shape()});
    tensors.push_back(t);
  };
  for (const DType dtype : kTypes) {
    const Tensor t = test::random_weights(dtype, {3, 512}, 1);
    add(to_string(dtype), t);
    add(std::string(to_string(dtype)) + ".f32", as_numbers(t));
  }
  io::GgufWriter writer(path, metadata, specs);
  for (std::size_t i = 0; i < specs.size(); ++i)
    writer.append(specs[i].name, std::span(static_cast<const std::byte*>(tensors[i].raw()), tensors[i].bytes()));
  writer.finish();
}

TEST(PeerGguf, ReadsWhatIsWrittenHere) {
  const testing::TempFolder dir;
  const auto path = dir / "all.gguf";
  write_all_types(path);
  const int status = check("read", path);
  if (status == kNotInstalled) GTEST_SKIP() << "no python3 with gguf and numpy";
  EXPECT_EQ(status, 0);
  std::string bytes = testing::read_bytes(path);
  bytes[bytes.size() - 700] = static_cast<char>(bytes[bytes.size() - 700] ^ 0x40);  // in the last tensor of numbers
  testing::write_bytes(path, bytes);
  EXPECT_EQ(check("read", path, " 2>/dev/null"), 1) << "the script does not see a wrong number";
}

TEST(PeerGguf, WritesWhatIsReadHere) {
  const testing::TempFolder dir;
  const int status = check("write", dir / "theirs.gguf");
  if (status == kNotInstalled) GTEST_SKIP() << "no python3 with gguf and numpy";
  ASSERT_EQ(status, 0);
  const GgufFile file = GgufFile::open(dir / "theirs.gguf");
  const io::GgufMetadata& m = file.metadata();
  EXPECT_EQ(m.integer("test.u32"), 4000000000);
  EXPECT_EQ(m.number("test.f32"), -0.375);
  EXPECT_TRUE(m.boolean("test.bool"));
  EXPECT_EQ(m.text("test.string"), "snö 你");
  EXPECT_EQ(m.texts("test.strings"), kTexts);
  EXPECT_EQ(m.integers("test.i32s"), std::vector<std::int64_t>(kNumbers.begin(), kNumbers.end()));
  const Tensor source = file.tensor("source");
  int compared = 0;
  for (const DType dtype : kTypes) {
    const std::string name = to_string(dtype);
    if (!file.contains(name)) continue;
    const Tensor theirs = file.tensor(name);
    ASSERT_EQ(theirs.dtype(), dtype);
    EXPECT_TRUE(test::same_bits(as_numbers(theirs), file.tensor(name + ".f32"))) << name;
    Tensor ours = source.to(is_quantized(dtype) ? DType::kF32 : dtype);
    if (is_quantized(dtype)) {
      ours = Tensor(dtype, source.shape());
      ops::quantize_row(dtype, source.span<float>(), ours.raw_mutable());
    }
    EXPECT_EQ(std::memcmp(ours.raw(), theirs.raw(), theirs.bytes()), 0) << name << ": other blocks of the same numbers";
    ++compared;
  }
  EXPECT_EQ(compared, 6);
}

TEST(PeerGguf, KnowsTheTensorsOfAModel) {
  for (const char* name : {"f32.gguf", "q4_k_m.gguf"}) {
    const int status = check("model", std::filesystem::path(DSMOE_TEST_DATA "/formats/golden_gguf") / name);
    if (status == kNotInstalled) GTEST_SKIP() << "no python3 with gguf and numpy";
    EXPECT_EQ(status, 0) << name;
  }
  const testing::TempFolder dir;
  write_all_types(dir / "no-model.gguf");
  EXPECT_EQ(check("model", dir / "no-model.gguf", " 2>/dev/null"), 1) << "the script takes anything";
  Context ctx(1);
  for (const char* name :
       {"qwen3_moe", "glm4_moe", "mixtral", "ernie4_5_moe", "minimax_m2", "dots1", "olmoe_mha", "hunyuan_v1_moe"}) {
    const auto source = ModelSource::open(std::filesystem::path(DSMOE_TEST_DATA "/model/golden_families") / name);
    write_gguf(ctx, dir / name, *source, source->export_metadata(name), gguf_file_type("f32"), {});
    EXPECT_EQ(check("model", dir / name), 0) << name;
  }
}

}  // namespace
}  // namespace dsmoe
