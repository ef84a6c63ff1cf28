#include "infer/scheduler.h"

#include <gtest/gtest.h>

#include <map>

#include "support/expect_error.h"

namespace dsmoe {
namespace {

using infer::Job;
using infer::RequestId;
using infer::Scheduler;
using infer::SchedulerOptions;
using infer::Share;

// Runs plans as an engine would, with a model that always says token 7.
struct SchedulerTest : ::testing::Test {
  explicit SchedulerTest(Index pages = 16) : pool(std::make_shared<KvPool>(layers, pages, DType::kF32)) {}

  Scheduler make(SchedulerOptions o) { return Scheduler(pool, o); }
  void add(Scheduler& s, RequestId id, std::size_t prompt, std::int32_t first = 0) {
    infer::Request r;
    for (std::size_t i = 0; i < prompt; ++i) r.prompt.push_back(first + static_cast<std::int32_t>(i));
    Scheduler::Jobs jobs;
    jobs.push_back(std::make_unique<Job>(id, std::move(r), KvSequence(pool, 1024)));
    s.add(std::move(jobs));
  }
  // Request -> tokens of its share.
  std::map<RequestId, Index> step(Scheduler& s, Index answer = 1000) {
    std::map<RequestId, Index> out;
    for (const Share& share : s.plan(ctx)) {
      Job& job = *share.job;
      out[job.id] = share.tokens;
      job.sequence.advance(share.tokens);
      if (job.pending() > 0) continue;
      job.ids.push_back(7);
      if (job.generated() >= answer) s.remove(job);
    }
    return out;
  }
  using Shares = std::map<RequestId, Index>;

  Context ctx{1};
  std::vector<KvLayout> layers{{2, 2}};
  std::shared_ptr<KvPool> pool;
};

TEST_F(SchedulerTest, PromptsTakeWhatGeneratingLeaves) {
  Scheduler s = make({.context = 1024, .parallel = 8, .step_tokens = 100});
  add(s, 1, 30), add(s, 2, 30, 100);
  EXPECT_EQ(step(s), (Shares{{1, 30}, {2, 30}}));
  add(s, 3, 400, 1000);
  EXPECT_EQ(step(s), (Shares{{1, 1}, {2, 1}, {3, 98}}));
  EXPECT_EQ(step(s), (Shares{{1, 1}, {2, 1}, {3, 98}}));
}

TEST_F(SchedulerTest, AShortPromptDoesNotWaitForALongOneAndALongOneGoesOn) {
  Scheduler s = make({.context = 1024, .parallel = 8, .step_tokens = 100});
  add(s, 1, 900);
  EXPECT_EQ(step(s), (Shares{{1, 100}}));
  add(s, 2, 40, 1000), add(s, 3, 30, 2000), add(s, 4, 10, 3000), add(s, 5, 600, 5000);
  EXPECT_EQ(step(s), (Shares{{1, 50}, {2, 40}, {4, 10}})) << "half of the step for those that end with it";
  EXPECT_EQ(step(s), (Shares{{1, 68}, {2, 1}, {3, 30}, {4, 1}})) << "of long ones the first";
}

TEST_F(SchedulerTest, PromptsGetAFourthHoweverManyGenerate) {
  Scheduler s = make({.context = 1024, .parallel = 8, .step_tokens = 4});
  for (RequestId id = 1; id <= 4; ++id) {
    add(s, id, 1, 100 * static_cast<std::int32_t>(id));
    step(s);
  }
  add(s, 5, 3, 900);
  EXPECT_EQ(step(s), (Shares{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}));
}

TEST_F(SchedulerTest, NoMoreThanParallelRun) {
  Scheduler s = make({.context = 1024, .parallel = 2, .step_tokens = 100});
  add(s, 1, 5), add(s, 2, 5, 10), add(s, 3, 5, 20);
  EXPECT_EQ(step(s, 1), (Shares{{1, 5}, {2, 5}}));
  EXPECT_EQ(s.waiting(), 1);
  EXPECT_EQ(step(s, 1), (Shares{{3, 5}}));
}

struct SmallPool : SchedulerTest {
  SmallPool() : SchedulerTest(4) {}
};

// Four pages. Two requests of one page each grow into two more; a third one waits until one has ended.
TEST_F(SmallPool, WhoCameLastGivesItsPagesBackAndEndsAllTheSame) {
  Scheduler s = make({.context = 1024, .parallel = 8, .step_tokens = 600, .prefix_cache = false});
  add(s, 1, 250), add(s, 2, 250, 1000), add(s, 3, 250, 2000);
  std::map<RequestId, Index> ran;
  int steps = 0;
  for (; s.waiting() + s.running() > 0; ++steps) {
    ASSERT_LT(steps, 5000);
    const Shares shares = step(s, 400);
    const std::vector<Job*> all = s.select([](const Job&) { return true; });
    if (!all.empty()) {
      EXPECT_LE(shares.begin()->first, all[0]->id) << "the first always runs";
    }
    for (const auto& [id, tokens] : shares) ran[id] += tokens;
  }
  EXPECT_GT(s.preemptions(), 0u);
  EXPECT_EQ(ran[1], 250 + 399) << "the first is never computed again";
  EXPECT_GT(ran[3], 250 + 399);
  EXPECT_EQ(pool->free_pages(), 4);
}

// With the cache, what was given back is found again as long as nobody needed the pages.
TEST_F(SmallPool, EveryRequestEndsWithThePrefixCacheToo) {
  Scheduler s = make({.context = 1024, .parallel = 8, .step_tokens = 300});
  for (RequestId id = 1; id <= 12; ++id) add(s, id, 100 + 60 * id, static_cast<std::int32_t>(id % 3 * 1000));
  for (int steps = 0; s.waiting() + s.running() > 0; ++steps) {
    ASSERT_LT(steps, 20'000);
    step(s, 150);
  }
  EXPECT_EQ(pool->free_pages() + s.cache().pages(), 4) << "all pages are free or in the cache";
}

// The pool is exactly one context: a request that begins in the middle of a cached page would need one page more.
TEST_F(SmallPool, ARequestAloneMayHaveTheWholePool) {
  Scheduler s = make({.context = 1024, .parallel = 8, .step_tokens = 2000});
  add(s, 1, 1000);
  step(s, 1);
  add(s, 2, 1000);
  const std::vector<Job*> jobs = s.select([](const Job&) { return true; });
  jobs[0]->ids.back() = 77;
  for (int steps = 0; s.waiting() + s.running() > 0; ++steps) {
    ASSERT_LT(steps, 50);
    step(s, 24);
  }
}

TEST_F(SchedulerTest, ASecondRequestBeginsWhereTheFirstOneLeft) {
  Scheduler s = make({.context = 1024, .parallel = 8, .step_tokens = 1000});
  add(s, 1, 600);
  step(s, 1);
  add(s, 2, 700);
  EXPECT_EQ(step(s, 1), (Shares{{2, 100}}));
  add(s, 3, 600);
  EXPECT_EQ(step(s, 1), (Shares{{3, 1}})) << "the last token is run for its logits";
}

TEST_F(SmallPool, AContextThatDoesNotFitIsRefused) {
  EXPECT_TRUE(testing::throws_error([&] { make({.context = 1025}); }, {"context of 1025", "cache-tokens"}));
}

}  // namespace
}  // namespace dsmoe
