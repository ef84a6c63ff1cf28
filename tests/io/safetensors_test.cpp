#include "io/safetensors.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <utility>

#include "io_test_support.h"

namespace dsmoe::io {
namespace {

SafetensorsFile from_string(const std::string& bytes) {
  return SafetensorsFile::from_memory(std::as_bytes(std::span(bytes)), "x.safetensors");
}

void expect_refused(const std::string& header, const std::string& data, std::initializer_list<std::string_view> parts) {
  SCOPED_TRACE(header);
  EXPECT_TRUE(throws_error([&] { from_string(raw_safetensors(header, data)); }, {"x.safetensors"}, ErrorCode::kFormat));
  EXPECT_TRUE(throws_error([&] { from_string(raw_safetensors(header, data)); }, parts, ErrorCode::kFormat));
}

const std::string kTwo =
    R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
    R"("__metadata__":{"format":"pt"}})";
const std::string kTwoData("\x80\x3f\x00\xc0\x00\x00\x80\x3f\x00\x00\x00\x40", 12);  // bf16 1, -2; f32 1, 2

TEST(Safetensors, ReadsAFileWithoutCopying) {
  TempFolder dir;
  // Spaces after the header put the data at a multiple of 8 bytes, as the format asks of writers.
  std::string header = kTwo;
  while ((8 + header.size()) % 8 != 0) header += ' ';
  write_bytes(dir / "x.safetensors", raw_safetensors(header, kTwoData));
  Tensor b;
  {
    const auto file = SafetensorsFile::open(dir / "x.safetensors");
    EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b"})) << "in the order of their bytes";
    EXPECT_TRUE(file.contains("a"));
    EXPECT_FALSE(file.contains("c"));
    EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}}));
    EXPECT_EQ(file.info("b").dtype, "F32");
    EXPECT_EQ(file.info("b").shape(), Shape{2});
    EXPECT_EQ(file.info("b").offset, 4u);
    EXPECT_EQ(file.info("b").bytes, 8u);
    const Tensor a = file.tensor("a");
    EXPECT_EQ(a.dtype(), DType::kBF16);
    EXPECT_EQ(a.shape(), (Shape{2, 1}));
    EXPECT_EQ(static_cast<float>(a.data<BFloat16>()[1]), -2.0f);
    b = file.tensor("b");
    EXPECT_EQ(b.raw(), file.tensor("b").raw()) << "two views, one memory";
    EXPECT_EQ(static_cast<const char*>(b.raw()) - static_cast<const char*>(a.raw()), 4);
    for (const auto advice : {Advice::kSequential, Advice::kRandom, Advice::kWillNeed, Advice::kDontNeed}) {
      file.advise("b", advice);
    }
  }
  EXPECT_EQ(std::as_const(b).data<float>()[1], 2.0f) << "the tensor keeps the map alive";
  EXPECT_THROW(b.data<float>(), Error) << "the map is read-only";
}

TEST(Safetensors, CopiesWhatIsNotAligned) {
  const std::string bytes = raw_safetensors(R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                            R"("f":{"dtype":"F32","shape":[],"data_offsets":[1,5]}})" +
                                                std::string(3, ' '),
                                            std::string("\x07\x00\x00\x80\x3f", 5));
  for (std::size_t shift = 0; shift < 4; ++shift) {  // one of the four is aligned
    const std::string shifted = std::string(shift, ' ') + bytes;
    const auto file = SafetensorsFile::from_memory(std::as_bytes(std::span(shifted)).subspan(shift), "m");
    const Tensor f = file.tensor("f");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(f.raw()) % 4, 0u);
    EXPECT_EQ(f.data<float>()[0], 1.0f);
    EXPECT_EQ(f.rank(), 0);
    const Tensor u = file.tensor("u");
    EXPECT_EQ(u.data<std::uint8_t>()[0], 7);
  }
}

TEST(Safetensors, ReadsEmptyFilesAndEmptyTensors) {
  EXPECT_TRUE(from_string(raw_safetensors("{}", "")).names().empty());
  const std::string bytes = raw_safetensors(R"({"full":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                            R"("zero":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]},)"
                                            R"("last":{"dtype":"I64","shape":[0],"data_offsets":[2,2]}})",
                                            "ab");
  const auto file = from_string(bytes);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"zero", "full", "last"}));
  EXPECT_EQ(file.tensor("zero").shape(), (Shape{3, 0}));
  EXPECT_EQ(file.tensor("last").numel(), 0);
}

TEST(Safetensors, RefusesATensorOnlyWhenItIsAskedFor) {
  const std::string bytes = raw_safetensors(R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                                            R"("r":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[8,9]},)"
                                            R"("u":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}})",
                                            std::string(10, '\1'));
  const auto file = from_string(bytes);
  EXPECT_EQ(std::as_const(file).tensor("u").numel(), 1);
  EXPECT_TRUE(throws_error([&] { file.tensor("d"); }, {"x.safetensors", "'d'", "F64"}, ErrorCode::kUnsupported));
  EXPECT_TRUE(throws_error([&] { file.tensor("r"); }, {"x.safetensors", "'r'", "5 dimensions"}, ErrorCode::kUnsupported));
  EXPECT_TRUE(throws_error([&] { file.tensor("nope"); }, {"x.safetensors", "'nope'"}, ErrorCode::kFormat));
}

TEST(Safetensors, RefusesBadLengths) {
  EXPECT_TRUE(throws_error([] { from_string("abc"); }, {"x.safetensors", "3 bytes"}, ErrorCode::kFormat));
  const std::string good = raw_safetensors(kTwo, kTwoData);
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_TRUE(throws_error([&] { from_string(good.substr(0, n)); }, {"x.safetensors"}, ErrorCode::kFormat));
  }
  EXPECT_NO_THROW(from_string(good));
  EXPECT_TRUE(throws_error([&] { from_string(good + '!'); }, {"12 bytes", "13"}, ErrorCode::kFormat));
  std::string huge = good;
  huge.replace(0, 8, 8, '\xff');
  EXPECT_TRUE(throws_error([&] { from_string(huge); }, {"18446744073709551615", "100000000"}, ErrorCode::kFormat));
  huge.replace(0, 8, std::string("\x00\xe1\xf5\x05\0\0\0\0", 8));  // exactly the limit, far past the end
  EXPECT_TRUE(throws_error([&] { from_string(huge); }, {"100000000", "truncated"}, ErrorCode::kFormat));
}

TEST(Safetensors, RefusesBadJson) {
  expect_refused("", "", {"'{'"});
  expect_refused("[]", "", {"'{'"});
  expect_refused("{", "", {"JSON"});
  expect_refused("{}}", "", {"JSON"});
  expect_refused("{\"a\xff\":{}}", "", {"JSON"});
  expect_refused(std::string("{}\0{}", 5), "", {"zero byte"});
  expect_refused(R"({"a":)" + std::string(100000, '[') + std::string(100000, ']') + "}", "", {"'a'", "array"});
  expect_refused(R"({"a":)" + std::string(100000, '['), "", {"'a'", "array"});
  expect_refused(R"({"a":5})", "", {"'a'", "number"});
  expect_refused(R"({"a":null})", "", {"'a'", "null"});
  expect_refused(R"({"a":{"dtype":{"x":1}}})", "", {"'a'", "dtype", "object"});
  expect_refused(R"({"a":{"dtype":["F32"]}})", "", {"'a'", "dtype", "array"});
  expect_refused(R"({"a":{"dtype":1}})", "", {"'a'", "dtype", "number"});
  expect_refused(R"({"a":{"shape":"2"}})", "", {"'a'", "shape", "string"});
  expect_refused(R"({"a":{"shape":[[2]]}})", "", {"'a'", "shape", "array"});
  expect_refused(R"({"a":{"shape":[true]}})", "", {"'a'", "shape", "true"});
  expect_refused(R"({"a":{"shape":[-1]}})", "", {"'a'", "shape", "negative"});
  expect_refused(R"({"a":{"shape":[1.5]}})", "", {"'a'", "shape", "integer"});
  expect_refused(R"({"a":{"shape":[99999999999999999999]}})", "", {"'a'", "shape", "integer"});
  expect_refused(R"({"__metadata__":{"k":1}})", "", {"'k'", "string"});
  expect_refused(R"({"__metadata__":{"k":{}}})", "", {"'k'", "object"});
  expect_refused(R"({"__metadata__":7})", "", {"'__metadata__'"});
}

TEST(Safetensors, RefusesDuplicatesAndWrongFields) {
  const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_NO_THROW(from_string(raw_safetensors("{" + a + "}", "x")));
  expect_refused("{" + a + "," + a + "}", "x", {"'a' twice"});
  expect_refused("{" + a + R"(,"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xy", {"'a' twice"});
  expect_refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x", {"'dtype' twice"});
  expect_refused(R"({"__metadata__":{"k":"1","k":"2"}})", "", {"'k' twice"});
  expect_refused(R"({"__metadata__":{},"__metadata__":{}})", "", {"'__metadata__' twice"});
  expect_refused(R"({"a":{"dtype":"U8","shape":[1]}})", "x", {"'a'", "found 2"});
  expect_refused(R"({"a":{}})", "x", {"'a'", "found 0"});
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}})", "x", {"'a'", "'more'"});
  expect_refused(R"({"a\n\u0001":{"dtype":"X"}})", "", {R"('a\x0a\x01')"});
  expect_refused("{\"" + std::string(5000, 'n') + "\":1}", "", {"nnn..."});
}

TEST(Safetensors, RefusesInconsistentTensors) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_NO_THROW(from_string(raw_safetensors(one("F32", "[1]", "[0,4]"), "1234")));
  expect_refused(one("F33", "[1]", "[0,4]"), "1234", {"'w'", "'F33'"});
  expect_refused(one("F32", "[2]", "[0,4]"), "1234", {"'w'", "F32 [2]", "needs 8", "give 4"});
  expect_refused(one("F4", "[3]", "[0,1]"), "1", {"'w'", "F4 [3]"});
  expect_refused(one("F32", "[1]", "[4,0]"), "1234", {"'w'", "[4, 0]"});
  expect_refused(one("F32", "[1]", "[0]"), "1234", {"'w'", "[0]"});
  expect_refused(one("F32", "[1]", "[0,4,8,12]"), "1234", {"'w'"});
  expect_refused(one("F32", "[1]", "[0,4]"), "123", {"'w'", "past the end", "3 bytes"});
  expect_refused(one("F32", "[1]", "[1,5]"), "12345", {"'w'", "hole"});
  expect_refused(one("F32", "[1]", "[18446744073709551612,18446744073709551615]"), "1234", {"'w'"});
  expect_refused(one("U8", "[4]", "[18446744073709551611,18446744073709551615]"), "1234", {"'w'", "past the end"});
  expect_refused(one("F32", "[4294967296,4294967296]", "[0,0]"), "", {"'w'", "too large"});
  expect_refused(one("F32", "[0,4294967296,4294967296]", "[0,0]"), "", {"'w'", "too large"});
  expect_refused(one("F32", "[18446744073709551615]", "[0,0]"), "", {"'w'", "18446744073709551615"});
  std::string ones = "[1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  expect_refused(one("U8", ones + "]", "[0,1]"), "1", {"'w'", "64 dimensions"});
  expect_refused(
      R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "123",
      {"'w'", "overlaps"});
  expect_refused(
      R"({"v":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", "123",
      {"'w'", "hole"});
}

TEST(Safetensors, SaysWhyAFileCannotBeOpened) {
  TempFolder dir;
  EXPECT_TRUE(throws_error([&] { SafetensorsFile::open(dir / "none.safetensors"); }, {"none.safetensors", "No such file"},
                           ErrorCode::kIo));
  EXPECT_TRUE(throws_error([&] { SafetensorsFile::open(dir.path()); }, {"not a regular file"}, ErrorCode::kIo));
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(throws_error([&] { SafetensorsFile::open(dir / "pipe"); }, {"pipe", "not a regular file"}, ErrorCode::kIo));
  write_bytes(dir / "empty", "");
  EXPECT_TRUE(throws_error([&] { SafetensorsFile::open(dir / "empty"); }, {"empty", "0 bytes"}, ErrorCode::kFormat));
}

TEST(IoTestSupport, ExpectErrorCanFail) {
  ::testing::TestPartResultArray failures;
  const auto count = [&](auto&& fn) {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    const int before = failures.size();
    fn();
    return failures.size() - before;
  };
  const auto throws = [] { throw Error(ErrorCode::kIo, "some text"); };
  EXPECT_EQ(count([&] { EXPECT_TRUE(throws_error(throws, {"text"}, ErrorCode::kIo)); }), 0);
  EXPECT_EQ(count([&] { EXPECT_TRUE(throws_error(throws, {"text"}, ErrorCode::kFormat)); }), 1);
  EXPECT_EQ(count([&] { EXPECT_TRUE(throws_error(throws, {"texts"}, ErrorCode::kIo)); }), 1);
  EXPECT_EQ(count([&] { EXPECT_TRUE(throws_error([] {}, {"text"}, ErrorCode::kIo)); }), 1);
  EXPECT_EQ(count([&] { EXPECT_TRUE(throws_error([] { throw Error(ErrorCode::kIo, "a\nb"); }, {}, ErrorCode::kIo)); }), 1);
}

}  // namespace
}  // namespace dsmoe::io
