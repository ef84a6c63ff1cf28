#include "infer/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

namespace dsmoe {
namespace {

using infer::PrefixCache;
using Ids = std::vector<std::int32_t>;

Ids counting(std::int32_t first, std::size_t count) {
  Ids ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct PrefixCacheTest : ::testing::Test {
  KvSequence run(const Ids& ids) {
    KvSequence s(pool, 4096);
    s.reserve(ctx, static_cast<Index>(ids.size()));
    s.advance(static_cast<Index>(ids.size()));
    return s;
  }
  Index found(const Ids& ids) { return cache.find(ids, 4096).length(); }

  Context ctx{1};
  std::vector<KvLayout> layers{{4, 4}};
  std::shared_ptr<KvPool> pool = std::make_shared<KvPool>(layers, 8, DType::kF32);
  PrefixCache cache{pool};
};

TEST_F(PrefixCacheTest, FindsWholePagesAndTheTokensInCommonOfOneMore) {
  const Ids text = counting(0, 600);
  {
    const KvSequence s = run(text);
    cache.store(s, text);
  }
  EXPECT_EQ(cache.pages(), 3);
  EXPECT_EQ(pool->free_pages(), 5);
  EXPECT_EQ(found(text), 600);
  EXPECT_EQ(found(counting(0, 700)), 600) << "a text that goes on";
  EXPECT_EQ(found(counting(0, 10)), 10) << "a text that ends in the first page";
  EXPECT_EQ(found(joined(counting(0, 300), {9999, 301})), 300) << "one that differs within a page";
  EXPECT_EQ(found(joined({5}, counting(1, 400))), 0);
  EXPECT_EQ(found({}), 0);
  const KvSequence s = cache.find(counting(0, 300), 4096);
  EXPECT_EQ(s.pages().size(), 2u);
  EXPECT_EQ(pool->references(s.pages()[0]), 2);
  EXPECT_EQ(cache.evictable(), 1) << "two are in use";
}

TEST_F(PrefixCacheTest, KeepsOnePageForTheSameTokensAndGrowsALastOne) {
  const Ids text = counting(0, 400);
  {
    const KvSequence a = run(text), b = run(text);
    cache.store(a, std::span(text).first(300));
    const Index first = cache.find(text, 4096).pages()[0];
    cache.store(b, text);
    EXPECT_EQ(cache.pages(), 2);
    EXPECT_EQ(cache.find(text, 4096).pages()[0], first);
    EXPECT_EQ(cache.find(text, 4096).pages()[1], b.pages()[1]) << "the longer one";
    cache.store(a, std::span(text).first(280));
    EXPECT_EQ(found(text), 400) << "a shorter one changes nothing";
  }
  EXPECT_EQ(pool->free_pages(), 6);
  const Ids other = joined(counting(0, 300), counting(1000, 50));
  const KvSequence c = run(other);
  cache.store(c, other);
  EXPECT_EQ(cache.pages(), 3) << "two ends of one beginning";
  EXPECT_EQ(found(other), 350);
  EXPECT_EQ(found(text), 400);
}

TEST_F(PrefixCacheTest, EvictsTheLeastRecentlyUsedFromTheEnd) {
  const Ids a = counting(0, 512), b = counting(5000, 256);
  {
    const KvSequence s = run(a), t = run(b);
    cache.store(s, a);
    cache.store(t, b);
  }
  EXPECT_EQ(found(a), 512);
  EXPECT_EQ(cache.evict(1), 1);
  EXPECT_EQ(found(b), 0) << "a was used later";
  EXPECT_EQ(cache.evict(1), 1);
  EXPECT_EQ(found(a), 256) << "the end of a text goes first";
  {
    const KvSequence used = cache.find(a, 4096);
    EXPECT_EQ(cache.evict(5), 0) << "somebody has it";
    EXPECT_EQ(cache.evictable(), 0);
  }
  EXPECT_EQ(cache.evictable(), 1);
  EXPECT_EQ(cache.evict(5), 1);
  EXPECT_EQ(pool->free_pages(), pool->pages());
}

// A page in use below one that nobody uses: the upper one cannot go before it.
TEST_F(PrefixCacheTest, APageInUseKeepsThoseAboveIt) {
  const Ids text = counting(0, 512);
  KvSequence b = run(text);
  {
    const KvSequence a = run(counting(0, 256));
    cache.store(a, counting(0, 256));
  }
  cache.store(b, text);
  EXPECT_EQ(cache.pages(), 2);
  EXPECT_EQ(cache.evictable(), 0);
  EXPECT_EQ(cache.evict(2), 0);
  b.truncate(0);
  EXPECT_EQ(cache.evictable(), 2);
  cache.clear();
  EXPECT_EQ(cache.pages(), 0);
  EXPECT_EQ(pool->free_pages(), pool->pages());
}

}  // namespace
}  // namespace dsmoe
