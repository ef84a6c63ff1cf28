#include "study/sketches.h"

#include <gtest/gtest.h>

#include <map>

#include "support/random_tensor.h"

namespace dsmoe::study {
namespace {

TEST(FrequentItems, IsExactWhileThereIsRoom) {
  FrequentItems items(10);
  for (int i = 0; i < 1000; ++i) items.add(i % 10);
  EXPECT_EQ(items.error(), 0u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(items.counts().at(i), 100u);
}

TEST(FrequentItems, KeepsItsBoundsAgainstExactCounts) {
  constexpr std::size_t kCapacity = 64;
  FrequentItems items(kCapacity);
  std::map<std::int32_t, std::uint64_t> exact;
  test::Draw draw(3);
  std::uint64_t length = 0;
  for (; length < 100'000; ++length) {
    // Half of the stream is ten frequent values, half is spread over many.
    const auto value = static_cast<std::int32_t>(draw(2) ? draw(10) : draw.between(10, 5000));
    items.add(value);
    exact[value]++;
    ASSERT_LE(items.counts().size(), kCapacity);
  }
  EXPECT_LE(items.error(), 2 * length / kCapacity);
  EXPECT_GT(items.error(), 0u);
  for (const auto& [value, count] : items.counts()) EXPECT_LE(count, exact[value]);
  for (const auto& [value, count] : exact) {
    const auto found = items.counts().find(value);
    EXPECT_LE(count, (found == items.counts().end() ? 0 : found->second) + items.error()) << value;
  }
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(items.counts().contains(i)) << i;
}

TEST(DistinctCounter, IsExactUpToItsLimitAndCloseBeyond) {
  DistinctCounter counter;
  const auto feed = [&](std::uint64_t from, std::uint64_t to) {
    for (int twice = 0; twice < 2; ++twice)
      for (std::uint64_t i = from; i < to; ++i) counter.add(mix_bits(i));
  };
  feed(0, 1000);
  EXPECT_TRUE(counter.exact());
  EXPECT_EQ(counter.count(), 1000);
  feed(1000, DistinctCounter::kExact);
  EXPECT_TRUE(counter.exact());
  EXPECT_EQ(counter.count(), static_cast<double>(DistinctCounter::kExact));
  feed(0, 100'000);
  EXPECT_FALSE(counter.exact());
  EXPECT_NEAR(counter.count(), 100'000, 0.025 * 100'000) << "three standard errors";
  feed(100'000, 3'000'000);
  EXPECT_NEAR(counter.count(), 3'000'000, 0.025 * 3'000'000);
}

}  // namespace
}  // namespace dsmoe::study
