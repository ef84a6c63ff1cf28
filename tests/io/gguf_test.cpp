// GGUF files: what is written is read back, and what is wrong is refused by name.
#include "io/gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "io/gguf_writer.h"
#include "io_test_support.h"

namespace dsmoe::io {
namespace {

// The bytes of a file put together by hand, right or wrong.
class Bytes {
 public:
  template <class T>
  Bytes& number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& string(std::string_view s) {
    number<std::uint64_t>(s.size());
    text_ += s;
    return *this;
  }
  Bytes& head(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    text_ += "GGUF";
    return number(version).number(tensors).number(keys);
  }
  Bytes& tensor(std::string_view name, std::vector<std::uint64_t> dims, std::uint32_t type, std::uint64_t offset) {
    string(name).number(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t d : dims) number(d);
    return number(type).number(offset);
  }
  Bytes& data(std::size_t n, std::size_t alignment = 32) {
    text_.append((alignment - text_.size() % alignment) % alignment, '\0');
    text_.append(n, 'x');
    return *this;
  }
  GgufFile open() const { return GgufFile::from_memory(std::as_bytes(std::span(text_)), "f.gguf"); }
  std::string& text() { return text_; }

 private:
  std::string text_;
};

void refused(std::initializer_list<std::string_view> parts, const std::function<void(Bytes&)>& make,
             ErrorCode code = ErrorCode::kFormat) {
  Bytes b;
  make(b);
  EXPECT_TRUE(throws_error([&] { b.open(); }, parts, code));
}

constexpr std::uint32_t kF32 = 0, kQ8_0 = 8;

TEST(Gguf, WhatIsWrittenIsReadBack) {
  const TempFolder dir;
  GgufMetadata m;
  m.set("a.u32", GgufValue::u32(7));
  m.set("a.f32", GgufValue::f32(1e-6f));
  m.set("a.bool", GgufValue::boolean(true));
  m.set("a.text", GgufValue::string("äöü\0x"));
  const std::vector<std::string> texts{"", "one", std::string("t\0o", 3)};
  const std::vector<std::int32_t> numbers{-1, 0, 1 << 30};
  m.set("a.texts", GgufValue::strings(texts));
  m.set("a.numbers", GgufValue::i32s(numbers));
  m.set("a.u32", GgufValue::u32(8));  // in place of the first

  const std::vector<TensorSpec> specs{{"q", DType::kQ8_0, {2, 3, 64}},
                                      {"empty", DType::kF32, {0, 5}},
                                      {"v", DType::kF32, {3}},
                                      {"h", DType::kBF16, {2, 1}}};
  GgufWriter writer(dir / "m.gguf", m, specs);
  std::vector<std::string> data;
  for (std::size_t i = 0; i < specs.size(); ++i) data.emplace_back(specs[i].bytes(), static_cast<char>('a' + i));
  EXPECT_FALSE(std::filesystem::exists(dir / "m.gguf"));
  writer.append("q", std::as_bytes(std::span(data[0])).first(100));
  EXPECT_TRUE(throws_error([&] { writer.append("v", {}); }, {"'v'", "out of turn", "'q'"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(throws_error([&] { writer.finish(); }, {"'q'", "not complete"}, ErrorCode::kInvalidArgument));
  writer.append("q", std::as_bytes(std::span(data[0])).subspan(100));
  for (std::size_t i = 1; i < specs.size(); ++i) writer.append(specs[i].name, std::as_bytes(std::span(data[i])));
  EXPECT_TRUE(throws_error([&] { writer.append("x", {}); }, {"no more tensors"}, ErrorCode::kInvalidArgument));
  writer.finish();

  EXPECT_TRUE(GgufFile::is_gguf(dir / "m.gguf"));
  EXPECT_FALSE(GgufFile::is_gguf(dir / "none"));
  EXPECT_FALSE(GgufFile::is_gguf(dir.path()));
  const GgufFile f = GgufFile::open(dir / "m.gguf");
  EXPECT_EQ(f.version(), 3u);
  EXPECT_EQ(f.metadata().entries().size(), 6u);
  EXPECT_EQ(f.metadata().integer("a.u32"), 8);
  EXPECT_EQ(static_cast<float>(f.metadata().number("a.f32")), 1e-6f);
  EXPECT_TRUE(f.metadata().boolean("a.bool"));
  EXPECT_EQ(f.metadata().text("a.text"), "äöü");
  EXPECT_EQ(f.metadata().texts("a.texts"), texts);
  EXPECT_EQ(f.metadata().integers("a.numbers"), std::vector<std::int64_t>(numbers.begin(), numbers.end()));
  ASSERT_EQ(f.tensors().size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Tensor t = f.tensor(specs[i].name);
    EXPECT_EQ(t.dtype(), specs[i].dtype);
    EXPECT_EQ(t.shape(), specs[i].shape);
    ASSERT_EQ(t.bytes(), data[i].size());
    EXPECT_EQ(std::string(static_cast<const char*>(t.raw()), t.bytes()), data[i]);
    EXPECT_EQ(f.info(specs[i].name).offset % 32, 0u);
  }
  EXPECT_THROW(f.tensor("v").clone().reshape({3}).data<BFloat16>(), Error);
  Tensor view = f.tensor("v");
  EXPECT_THROW(view.raw_mutable(), Error) << "the map is read-only";
}

TEST(Gguf, TheWriterRefusesWhatNobodyCanRead) {
  const TempFolder dir;
  const auto write = [&](std::vector<TensorSpec> specs) { GgufWriter(dir / "x.gguf", GgufMetadata(), std::move(specs)); };
  EXPECT_TRUE(throws_error(
      [&] {
        write({{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}});
      },
      {"'a'", "twice"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(throws_error(
      [&] {
        write({{std::string(64, 'a'), DType::kF32, {1}}});
      },
      {"63"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(throws_error([&] { write({{"a", DType::kQ4_0, {2, 48}}}); }, {"48", "32"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(throws_error([&] { write({{"a", DType::kU8, {2}}}); }, {"u8"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "nothing is left behind";
}

TEST(Gguf, VersionTwoAndEveryTypeOfValue) {
  Bytes b;
  b.head(1, 14, 2);
  const auto value = [&](const char* key, GgufType type, auto number) { b.string(key).number(type).number(number); };
  value("u8", GgufType::kU8, std::uint8_t{200});
  value("i8", GgufType::kI8, std::int8_t{-3});
  value("u16", GgufType::kU16, std::uint16_t{60000});
  value("i16", GgufType::kI16, std::int16_t{-300});
  value("u32", GgufType::kU32, std::uint32_t{4000000000u});
  value("i32", GgufType::kI32, std::int32_t{-70000});
  value("f32", GgufType::kF32, 0.5f);
  value("bool", GgufType::kBool, std::uint8_t{1});
  b.string("string").number(GgufType::kString).string("text");
  value("u64", GgufType::kU64, std::uint64_t{1} << 63);
  value("i64", GgufType::kI64, std::int64_t{-1} * (std::int64_t{1} << 40));
  value("f64", GgufType::kF64, 1e300);
  b.string("nested").number(GgufType::kArray).number(GgufType::kArray).number<std::uint64_t>(2);
  b.number(GgufType::kU16).number<std::uint64_t>(1).number<std::uint16_t>(5);
  b.number(GgufType::kString).number<std::uint64_t>(1).string("x");
  b.string("general.alignment").number(GgufType::kU32).number<std::uint32_t>(64);
  b.tensor("t", {32, 2}, kQ8_0, 0).data(2 * 34, 64);
  const GgufFile f = b.open();
  const GgufMetadata& m = f.metadata();
  EXPECT_EQ(f.version(), 2u);
  EXPECT_EQ(m.integer("u8"), 200);
  EXPECT_EQ(m.integer("i8"), -3);
  EXPECT_EQ(m.integer("u16"), 60000);
  EXPECT_EQ(m.integer("i16"), -300);
  EXPECT_EQ(m.integer("u32"), 4000000000);
  EXPECT_EQ(m.integer("i32"), -70000);
  EXPECT_EQ(m.number("f32"), 0.5);
  EXPECT_EQ(m.number("i32"), -70000);
  EXPECT_TRUE(m.boolean("bool"));
  EXPECT_EQ(m.text("string"), "text");
  EXPECT_EQ(m.integer("i64"), std::int64_t{-1} * (std::int64_t{1} << 40));
  EXPECT_EQ(m.number("f64"), 1e300);
  EXPECT_EQ(m.integer("not there", 5), 5);
  EXPECT_EQ(f.tensor("t").shape(), Shape({2, 32}));
  EXPECT_TRUE(throws_error([&] { m.integer("u64"); }, {"'u64'", "63 bits"}, ErrorCode::kFormat));
  EXPECT_TRUE(throws_error([&] { m.integer("text"); }, {"'text'", "missing"}, ErrorCode::kFormat));
  EXPECT_TRUE(throws_error([&] { m.integer("f32"); }, {"'f32'", "f32", "integer"}, ErrorCode::kFormat));
  EXPECT_TRUE(throws_error([&] { m.boolean("u8"); }, {"'u8'", "bool"}, ErrorCode::kFormat));
  EXPECT_TRUE(throws_error([&] { m.texts("nested"); }, {"'nested'", "array of array", "strings"}, ErrorCode::kFormat));
  EXPECT_TRUE(throws_error([&] { m.integers("nested"); }, {"'nested'", "integers"}, ErrorCode::kFormat));
  EXPECT_TRUE(throws_error([&] { m.number("string"); }, {"'string'", "a number"}, ErrorCode::kFormat));
}

TEST(Gguf, HostileHeadersAreRefused) {
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  refused({"not a GGUF file"}, [](Bytes& b) { b.text() = "GGML    "; });
  refused({"truncated"}, [](Bytes& b) { b.text() = "GGUF"; });
  refused(
      {"version 1"}, [](Bytes& b) { b.head(0, 0, 1); }, ErrorCode::kUnsupported);
  refused(
      {"version 9"}, [](Bytes& b) { b.head(0, 0, 9); }, ErrorCode::kUnsupported);
  refused(
      {"big-endian"}, [](Bytes& b) { b.head(0, 0, 0x03000000); }, ErrorCode::kUnsupported);
  refused({"truncated"}, [&](Bytes& b) { b.head(kHuge, 0); });
  refused({"truncated"}, [&](Bytes& b) { b.head(0, kHuge); });
  refused({"a key", "truncated"}, [&](Bytes& b) { b.head(0, 1).number(kHuge); });
  refused({"empty"}, [&](Bytes& b) { b.head(0, 1).string("").number(GgufType::kU8).number<std::uint8_t>(0); });
  refused({"'k'", "twice"}, [&](Bytes& b) {
    b.head(0, 2);
    for (int i = 0; i < 2; ++i) b.string("k").number(GgufType::kU8).number<std::uint8_t>(0);
  });
  refused({"'k'", "unknown type 13"}, [&](Bytes& b) { b.head(0, 1).string("k").number<std::uint32_t>(13).data(64); });
  refused({"'k'", "string"}, [&](Bytes& b) { b.head(0, 1).string("k").number(GgufType::kString).number(kHuge); });
  refused({"'k'", "does not fit"}, [&](Bytes& b) {
    b.head(0, 1).string("k").number(GgufType::kArray).number(GgufType::kU64).number(kHuge / 8 + 2);
  });
  refused({"'k'", "unknown type 77"}, [&](Bytes& b) {
    b.head(0, 1).string("k").number(GgufType::kArray).number<std::uint32_t>(77).number<std::uint64_t>(0);
  });
  refused({"'k'", "nested"}, [&](Bytes& b) {
    b.head(0, 1).string("k").number(GgufType::kArray);
    for (int i = 0; i < 8; ++i) b.number(GgufType::kArray).number<std::uint64_t>(1);
  });
  for (const std::uint32_t bad : {0u, 3u, 48u})
    refused({"general.alignment", "power of two"},
            [&](Bytes& b) { b.head(0, 1).string("general.alignment").number(GgufType::kU32).number(bad); });
}

TEST(Gguf, HostileTensorsAreRefused) {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 32;
  refused({"'t'", "5 dimensions"}, [](Bytes& b) { b.head(1, 0).tensor("t", {1, 1, 1, 1, 1}, kF32, 0).data(4); });
  refused({"'t'", "fits no memory"}, [&](Bytes& b) { b.head(1, 0).tensor("t", {kHuge, kHuge}, kF32, 0).data(4); });
  refused({"'t'", "fits no memory"}, [&](Bytes& b) { b.head(1, 0).tensor("t", {0, ~0ull, ~0ull}, kF32, 0).data(4); });
  refused(
      {"'t'", "unknown tensor type 4"}, [](Bytes& b) { b.head(1, 0).tensor("t", {1}, 4, 0).data(4); },
      ErrorCode::kUnsupported);
  refused({"'t'", "no multiple", "Q8_0"}, [](Bytes& b) { b.head(1, 0).tensor("t", {33}, kQ8_0, 0).data(68); });
  refused({"'t'", "alignment"}, [](Bytes& b) { b.head(1, 0).tensor("t", {1}, kF32, 16).data(64); });
  refused({"'t'", "past the end"}, [](Bytes& b) { b.head(1, 0).tensor("t", {2}, kF32, 0).data(7); });
  refused({"'t'", "past the end"}, [](Bytes& b) { b.head(1, 0).tensor("t", {1}, kF32, ~0ull - 31).data(64); });
  refused({"'t'", "twice"}, [](Bytes& b) { b.head(2, 0).tensor("t", {1}, kF32, 0).tensor("t", {1}, kF32, 32).data(64); });
  refused({"'a'", "'b'", "overlap"},
          [](Bytes& b) { b.head(2, 0).tensor("b", {1}, kF32, 32).tensor("a", {9}, kF32, 0).data(64); });

  Bytes other;  // a type that we do not compute with may be in a file, and its size is checked
  other.head(2, 0).tensor("t", {256}, 10, 0).tensor("u", {4}, kF32, 96).data(112);
  EXPECT_EQ(other.open().tensor("u").numel(), 4);
  EXPECT_TRUE(throws_error([&] { other.open().tensor("t"); }, {"'t'", "Q2_K"}, ErrorCode::kUnsupported));
  EXPECT_TRUE(throws_error([&] { other.open().tensor("v"); }, {"no tensor 'v'"}, ErrorCode::kFormat));
}

TEST(Gguf, BytesThatAreNotAlignedForTheTypeAreCopied) {
  Bytes b;
  b.head(1, 1).string("general.alignment").number(GgufType::kU32).number<std::uint32_t>(1);
  b.tensor("t", {1}, kF32, 0).data(4, 1);
  std::string shifted = " " + b.text();
  const auto bytes = std::as_bytes(std::span(shifted)).subspan(1);
  for (std::size_t shift = 0; shift < 2; ++shift) {
    const GgufFile f = GgufFile::from_memory(shift ? bytes : std::as_bytes(std::span(b.text())), "f");
    const Tensor t = f.tensor("t");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.raw()) % 4, 0u);
    EXPECT_EQ(std::memcmp(t.raw(), "xxxx", 4), 0);
  }
}

}  // namespace
}  // namespace dsmoe::io
