// Files with room that others fill have the bytes of those that one writer fills.
#include "io/file_place.h"

#include <gtest/gtest.h>

#include "io/safetensors_writer.h"
#include "io/sharded_writer.h"
#include "io_test_support.h"
#include "support/expect_error.h"

namespace dsmoe::io {
namespace {

std::vector<TensorSpec> some_tensors() {
  return {{"a", DType::kI32, {5}}, {"none", DType::kI32, {0}}, {"b", DType::kI32, {300, 1000}}, {"c", DType::kI32, {7, 3}}};
}

Tensor filled(const TensorSpec& spec, std::int32_t first) {
  Tensor t(spec.dtype, spec.shape);
  for (std::int32_t& x : t.span<std::int32_t>()) x = first++;
  return t;
}

std::span<const std::byte> bytes_of(const Tensor& t) { return {static_cast<const std::byte*>(t.raw()), t.bytes()}; }

TEST(FilePlace, TheSameFile) {
  const TempFolder dir;
  SafetensorsWriter alone(dir / "alone", some_tensors()), together(dir / "together", some_tensors());
  std::vector<FilePlace> places;
  for (const TensorSpec& spec : some_tensors()) {
    alone.write(spec.name, filled(spec, 1));
    places.push_back(together.leave(spec.name));
  }
  EXPECT_TRUE(together.complete());
  // Two writers, by halves, the last one first.
  for (const bool second : {true, false}) {
    PlaceWriter writer;
    for (std::size_t i = places.size(); i-- > 0;) {
      const Tensor t = filled(some_tensors()[i], 1);
      const std::size_t half = t.bytes() / 8 * 4;
      FilePlace place = places[i];
      if (second) place.offset += half;
      writer.write(place, second ? bytes_of(t).subspan(half) : bytes_of(t).first(half));
    }
    writer.finish();
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "together"));
  alone.finish(), together.finish();
  EXPECT_EQ(read_bytes(dir / "together"), read_bytes(dir / "alone"));
}

TEST(FilePlace, SeveralShards) {
  const TempFolder dir;
  ShardedWriter alone(dir / "alone", some_tensors(), 1000), together(dir / "together", some_tensors(), 1000);
  ASSERT_EQ(together.shards(), 3u);
  PlaceWriter writer;
  for (const TensorSpec& spec : some_tensors()) {
    alone.write(spec.name, filled(spec, 7));
    writer.write(together.leave(spec.name), bytes_of(filled(spec, 7)));
  }
  writer.finish();
  alone.finish(), together.finish();
  for (const auto& entry : std::filesystem::directory_iterator(dir / "alone"))
    EXPECT_EQ(read_bytes(entry.path()), read_bytes(dir / "together" / entry.path().filename())) << entry.path();
}

TEST(FilePlace, AFileThatIsNotThere) {
  const TempFolder dir;
  PlaceWriter writer;
  const Tensor t = filled(some_tensors()[0], 1);
  EXPECT_TRUE(testing::throws_error([&] { writer.write({dir / "nobody", 0}, bytes_of(t)); }, {"nobody: cannot open"}));
}

}  // namespace
}  // namespace dsmoe::io
