// Who holds which page: counts, sharing, copies on writing, and what happens when pages run out.
#include "model/kv_pool.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/expect_error.h"
#include "support/random_tensor.h"

namespace dsmoe {
namespace {

constexpr Index kPage = KvPool::kPageTokens;

std::shared_ptr<KvPool> make_pool(Index pages) {
  const KvLayout layers[] = {{4, 4}, {4, 2}};
  return std::make_shared<KvPool>(layers, pages, DType::kF32);
}

class KvPoolTest : public ::testing::Test {
 protected:
  void append(KvSequence& s, Index tokens) {
    s.reserve(ctx, tokens);
    s.advance(tokens);
  }
  Context ctx{1};
};

TEST_F(KvPoolTest, PagesAreCounted) {
  const auto keep = make_pool(3);
  KvPool& p = *keep;
  EXPECT_EQ(p.pages(), 3);
  EXPECT_EQ(p.k(1).shape(), Shape({3 * kPage, 4}));
  EXPECT_EQ(p.v(1).shape(), Shape({3 * kPage, 2}));
  const Index a = p.allocate(), b = p.allocate();
  EXPECT_EQ(a, 0) << "lowest first, so that one sequence alone lies in one piece";
  EXPECT_EQ(b, 1);
  p.share(a);
  EXPECT_EQ(p.references(a), 2);
  p.release(a);
  EXPECT_EQ(p.free_pages(), 1);
  p.release(a);
  EXPECT_EQ(p.free_pages(), 2);
  EXPECT_EQ(p.references(a), 0);
  EXPECT_TRUE(testing::throws_error([&] { p.release(a); }, {"page 0", "free"})) << "twice";
  EXPECT_TRUE(testing::throws_error([&] { p.share(a); }, {"page 0", "free"}));
  EXPECT_TRUE(testing::throws_error([&] { p.release(3); }, {"no page 3"}));
  EXPECT_TRUE(testing::throws_error([&] { p.references(-1); }, {"no page -1"}));
  EXPECT_EQ(p.free_pages(), 2) << "what is refused changes nothing";
}

// A shared page of blocks is copied as it is when one of its sequences goes on.
TEST_F(KvPoolTest, QuantizedPagesAreCopied) {
  const KvLayout layers[] = {{64, 32}};
  const auto pool = std::make_shared<KvPool>(layers, 2, DType::kQ8_0);
  KvSequence a(pool);
  append(a, 3);
  const std::size_t bytes = 3 * row_bytes(DType::kQ8_0, 64);
  auto* const rows = static_cast<char*>(pool->k(0).raw_mutable());
  for (std::size_t i = 0; i < bytes; ++i) rows[i] = static_cast<char>(i);
  KvSequence b = a.fork(3);
  append(b, 1);
  ASSERT_EQ(b.pages()[0], 1);
  EXPECT_EQ(std::memcmp(pool->k(0).rows(kPage, kPage + 3).raw(), rows, bytes), 0);
}

TEST_F(KvPoolTest, RunningOutIsAnErrorThatChangesNothing) {
  const auto pool = make_pool(3);
  KvSequence a(pool), b(pool);
  append(a, kPage + 1);
  append(b, 10);
  EXPECT_EQ(pool->free_pages(), 0);
  append(b, kPage - 10);  // its page is not full yet
  EXPECT_TRUE(
      testing::throws_error([&] { b.reserve(ctx, 1); }, {"1 tokens need 1 pages", "3 pages 0 are free", "context"}));
  EXPECT_TRUE(testing::throws_error([&] { pool->allocate(); }, {"all 3 pages"}));
  EXPECT_EQ(b.length(), kPage);
  EXPECT_EQ(b.pages().size(), 1u);
  a.truncate(kPage);
  EXPECT_EQ(pool->free_pages(), 1);
  append(b, 1);
  EXPECT_TRUE(testing::throws_error([&] { b.advance(kPage); }, {"256 tokens", "room for 255"}));
  EXPECT_TRUE(testing::throws_error([&] { a.truncate(kPage + 1); }, {"257 tokens of 256"}));
  EXPECT_TRUE(testing::throws_error([&] { a.fork(kPage + 1); }, {"257 tokens of 256"}));
}

TEST_F(KvPoolTest, ASequenceGivesItsPagesBack) {
  const auto pool = make_pool(4);
  {
    KvSequence a(pool);
    append(a, 3 * kPage);
    KvSequence b = std::move(a), c(pool);
    EXPECT_EQ(a.length(), 0);  // NOLINT(bugprone-use-after-move): it is empty, and must not give anything back
    EXPECT_EQ(b.length(), 3 * kPage);
    append(c, 1);
    c = std::move(b);
    EXPECT_EQ(pool->free_pages(), 1);
  }
  EXPECT_EQ(pool->free_pages(), 4);
  KvSequence reserved(pool);
  reserved.reserve(ctx, kPage + 1);
  EXPECT_EQ(pool->free_pages(), 2);
  reserved.truncate(0);
  EXPECT_EQ(pool->free_pages(), 4) << "room that was not used";
}

TEST_F(KvPoolTest, ForksShareUntilOneWrites) {
  const auto pool = make_pool(8);
  KvSequence a(pool);
  append(a, kPage + 100);
  for (Tensor* t : {&pool->k(0), &pool->v(1)})
    for (Index i = 0; i < t->numel(); ++i) t->data<float>()[i] = static_cast<float>(i);
  KvSequence b = a.fork(a.length()), prefix = a.fork(kPage);
  EXPECT_EQ(pool->references(a.pages()[0]), 3);
  EXPECT_EQ(pool->references(a.pages()[1]), 2);
  EXPECT_EQ(pool->free_pages(), 6);
  EXPECT_EQ(prefix.pages_needed(1), 1) << "a whole page is never written again";
  EXPECT_EQ(b.pages_needed(1), 1) << "the copy";
  EXPECT_EQ(b.pages_needed(kPage), 2);
  append(b, 1);
  EXPECT_EQ(b.pages()[0], a.pages()[0]);
  ASSERT_NE(b.pages()[1], a.pages()[1]);
  EXPECT_EQ(pool->references(a.pages()[1]), 1);
  for (Tensor* t : {&pool->k(0), &pool->v(1)}) {
    const Index from = a.pages()[1] * kPage, to = b.pages()[1] * kPage, width = t->dim(1);
    for (Index i = 0; i < 100 * width; ++i) ASSERT_EQ(t->data<float>()[to * width + i], t->data<float>()[from * width + i]);
    EXPECT_NE(t->data<float>()[(to + 100) * width], t->data<float>()[(from + 100) * width]) << "only what is in use";
  }
  EXPECT_EQ(a.pages_needed(1), 0) << "the other one has left: no copy";
  append(a, 1);
  EXPECT_EQ(pool->free_pages(), 5);
  // Back into a page that is shared: writing there is a copy, too.
  b.truncate(50);
  EXPECT_EQ(b.pages_needed(1), 1);
  append(b, 1);
  EXPECT_NE(b.pages()[0], a.pages()[0]);
  EXPECT_EQ(pool->references(a.pages()[0]), 2);
}

// Any order of everything, against a plain count of who holds what.
TEST_F(KvPoolTest, RandomLivesKeepTheCounts) {
  const auto pool = make_pool(24);
  test::Draw draw(3);
  std::vector<KvSequence> all;
  Index refused = 0;
  for (int step = 0; step < 3000; ++step) {
    const Index what = draw(6);
    if (all.empty() || (what == 0 && all.size() < 12)) all.emplace_back(pool);
    KvSequence& s = all[static_cast<std::size_t>(draw(static_cast<Index>(all.size())))];
    const Index tokens = draw.between(0, 2 * kPage);
    if (what <= 2) {
      if (s.pages_needed(tokens) <= pool->free_pages())
        append(s, tokens);
      else
        refused += testing::throws_error([&] { s.reserve(ctx, tokens); }, {"free"}) ? 1 : 0;
    } else if (what == 3) {
      s.truncate(draw.between(0, s.length()));
    } else if (what == 4 && all.size() < 12) {
      KvSequence forked = s.fork(draw.between(0, s.length()));
      all.push_back(std::move(forked));
    } else if (what == 5) {
      std::swap(s, all.back());
      all.pop_back();
    }
    std::vector<Index> holders(static_cast<std::size_t>(pool->pages()));
    for (const KvSequence& one : all) {
      ASSERT_EQ(static_cast<Index>(one.pages().size()), KvPool::pages_for(one.length()));
      for (const Index page : one.pages()) ++holders[static_cast<std::size_t>(page)];
    }
    Index free = 0;
    for (Index page = 0; page < pool->pages(); ++page) {
      ASSERT_EQ(pool->references(page), holders[static_cast<std::size_t>(page)]);
      free += holders[static_cast<std::size_t>(page)] == 0;
    }
    ASSERT_EQ(pool->free_pages(), free);
  }
  EXPECT_GT(refused, 0);
  all.clear();
  EXPECT_EQ(pool->free_pages(), pool->pages());
}

}  // namespace
}  // namespace dsmoe
