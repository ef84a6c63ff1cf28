// Sampling on a GPU: the same tokens as on the CPU, from the same logits, by one block a row and by a cluster of them.
#include <gtest/gtest.h>

#include "cuda/gpu_test.h"
#include "support/expect_error.h"
#include "support/sample_case.h"

namespace dsmoe::test {
namespace {

class CudaSample : public GpuTest {
 protected:
  void expect_the_cpus(const std::vector<SampleCase>& cases, int times, const char* what) {
    Context host(0);
    const auto want = sampled(host, cases, times);
    for (const cuda::Path path : {cuda::Path::kAuto, cuda::Path::kPlain}) {
      const Forced forced(path);
      const auto got = sampled(ctx(), cases, times);
      for (std::size_t r = 0; r < cases.size(); ++r) {
        const SamplerOptions& o = cases[r].options;
        ASSERT_EQ(got[r], want[r]) << what << ", " << cases[r].logits.size() << " tokens, row " << r << " of "
                                   << cases.size() << ", path " << to_string(path) << "; temperature " << o.temperature
                                   << ", top-k " << o.top_k << ", top-p " << o.top_p << ", min-p " << o.min_p;
      }
    }
  }
};

TEST_F(CudaSample, RandomCases) {
  Draw draw(11);
  for (const Index vocab : {1, 2, 7, 31, 1000, 1025, 8191, 20'000})
    for (const Index rows : {1, 3, 20, 70}) {
      std::vector<SampleCase> cases;
      for (Index r = 0; r < rows; ++r) cases.push_back(random_case(draw, vocab));
      expect_the_cpus(cases, 3, "random");
    }
}

TEST_F(CudaSample, AWholeVocabulary) {
  Draw draw(12);
  for (const Index rows : {1, 24, 140}) {
    std::vector<SampleCase> cases;
    for (Index r = 0; r < rows; ++r) cases.push_back(random_case(draw, 102'400));
    expect_the_cpus(cases, 2, "whole vocabulary");
  }
}

// Every filter by itself, on logits as a model gives them, and where nothing tells tokens apart.
TEST_F(CudaSample, EachFilterAlone) {
  Draw draw(13);
  std::vector<SampleCase> cases;
  const auto add = [&](auto change) {
    for (const float scale : {0.0f, 1e-3f, 2.5f}) {
      const Tensor x = random_tensor(DType::kF32, {30'001}, cases.size(), scale);
      SampleCase c{plain_sampling(), {x.span<float>().begin(), x.span<float>().end()}};
      for (int i = 0; i < 90; ++i) c.history.push_back(static_cast<std::int32_t>(draw(50)));
      change(c);
      cases.push_back(c);
    }
  };
  add([](SampleCase&) {});
  for (const Index k : {1, 40, 1023, 1024, 1025, 5000, 30'000, 30'001}) add([&](SampleCase& c) { c.options.top_k = k; });
  for (const float p : {1e-6f, 0.3f, 0.95f, 0.99999f}) add([&](SampleCase& c) { c.options.top_p = p; });
  for (const float p : {1e-9f, 0.01f, 1.0f}) add([&](SampleCase& c) { c.options.min_p = p; });
  for (const float t : {0.0f, 1e-20f, 0.1f, 10.0f}) add([&](SampleCase& c) { c.options.temperature = t; });
  add([](SampleCase& c) { c.options.repetition_penalty = 1.3f; });
  add([](SampleCase& c) { c.options.frequency_penalty = 0.2f; });
  add([](SampleCase& c) { c.options.presence_penalty = 0.7f, c.options.repetition_window = 100; });
  add([](SampleCase& c) { c.banned = {0, 5, 30'000}; });
  add([](SampleCase& c) { c.options = SamplerOptions{}; });
  expect_the_cpus(cases, 5, "one filter");
}

TEST_F(CudaSample, ARowDoesNotDependOnItsBatch) {
  Draw draw(14);
  std::vector<SampleCase> cases;
  for (int r = 0; r < 40; ++r) cases.push_back(random_case(draw, 3001));
  const auto together = sampled(ctx(), cases, 6);
  for (std::size_t r = 0; r < cases.size(); ++r) ASSERT_EQ(sampled(ctx(), {cases[r]}, 6)[0], together[r]) << r;
}

TEST_F(CudaSample, LogitsThatAreNotFiniteAreTheCpusError) {
  Draw draw(15);
  Context host(1);
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY})
    for (const std::vector<std::int32_t>& banned : {std::vector<std::int32_t>(), {7, 1234}}) {
      SampleCase c = random_case(draw, 5000);
      c.banned = banned, c.history = {1234, 1234};
      c.options.repetition_penalty = 1.5f;
      c.logits[1234] = bad;
      c.logits[3000] = NAN;
      const auto error = [&](Context& where) { return ::dsmoe::testing::error_of([&] { sampled(where, {c}, 1); }); };
      EXPECT_NE(error(host), "");
      EXPECT_EQ(error(ctx()), error(host));
    }
  // The Context is good for other work afterwards.
  expect_the_cpus({random_case(draw, 100)}, 2, "after an error");
}

}  // namespace
}  // namespace dsmoe::test
