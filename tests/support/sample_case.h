// Rows to sample from: random options and logits, with all that is special about them.
#pragma once

#include <vector>

#include "ops/sample.h"
#include "support/random_tensor.h"

namespace dsmoe::test {

struct SampleCase {
  SamplerOptions options;
  std::vector<float> logits;
  std::vector<std::int32_t> history, banned;
};

// Nothing but the probabilities of the logits.
inline SamplerOptions plain_sampling() {
  return {
      .repetition_penalty = 1, .repetition_window = 64, .top_k = 0, .top_p = 1, .min_p = 0, .temperature = 1, .seed = 3};
}

inline SamplerOptions random_sampling(Draw& draw) {
  const auto pick = [&](std::initializer_list<double> values) {
    return static_cast<float>(values.begin()[draw(static_cast<Index>(values.size()))]);
  };
  SamplerOptions o;
  o.seed = static_cast<std::uint64_t>(draw(1000));
  o.temperature = pick({0, 1e-30, 0.01, 0.7, 1, 1, 1.3, 100, 1e30});
  if (draw(4) == 0) return o;  // the defaults of all others
  o.top_k = static_cast<Index>(pick({0, 0, 0, 1, 2, 40, 1000, 3000, 200'000}));
  o.top_p = pick({1, 1, 1e-9, 0.1, 0.5, 0.9, 0.999, 0.9999999});
  o.min_p = pick({0, 0, 1e-12, 0.001, 0.05, 0.5, 1});
  o.repetition_penalty = pick({1, 1, 1.1, 0.8, 1e-38, 1e30});
  o.presence_penalty = pick({0, 0, 0.5, -1, 3e38});
  o.frequency_penalty = pick({0, 0, 0.25, -0.5});
  o.repetition_window = static_cast<Index>(pick({0, 1, 10, 64, 500}));
  return o;
}

inline SampleCase random_case(Draw& draw, Index vocab) {
  SampleCase c;
  c.options = random_sampling(draw);
  const double scales[] = {0, 1e-6, 1, 3, 3, 8, 100, 1e30};
  const double scale = scales[draw(8)];
  // Many ties, some, or as good as none.
  const double steps[] = {0.5, 1.0 / 64, 1e-7};
  const double step = steps[draw(3)];
  const Philox rng(static_cast<std::uint64_t>(draw(1'000'000)), 5);
  for (Index i = 0; i < vocab; ++i)
    c.logits.push_back(static_cast<float>(
        scale * step * static_cast<double>(std::llround(rng.normal(static_cast<std::uint64_t>(i)) / step))));
  for (Index i = draw(80); i > 0; --i) c.history.push_back(static_cast<std::int32_t>(draw(std::min<Index>(vocab, 30))));
  for (Index i = draw(2) ? 0 : draw(4); i > 0; --i) c.banned.push_back(static_cast<std::int32_t>(draw(vocab)));
  return c;
}

// The tokens that each case chooses, so many one after another, all from the same logits. All are rows of
// one batch. vocab is the same in all cases.
inline std::vector<std::vector<std::int32_t>> sampled(Context& ctx, const std::vector<SampleCase>& cases, int times) {
  const auto count = static_cast<Index>(cases.size()), vocab = static_cast<Index>(cases[0].logits.size());
  ops::Sampling sampling(ctx, count, 100, 4);
  Tensor logits(DType::kF32, {count, vocab});
  for (Index i = 0; i < count; ++i) {
    const SampleCase& c = cases[static_cast<std::size_t>(i)];
    sampling.start(ctx, i, c.options, c.history, c.banned);
    std::copy(c.logits.begin(), c.logits.end(), logits.data<float>() + i * vocab);
  }
  std::vector<std::vector<std::int32_t>> chosen(cases.size());
  for (int t = 0; t < times; ++t) {
    Tensor there = ctx.device() == Device::kCpu ? logits.clone() : ctx.place(logits);
    ops::sample(ctx, there, sampling);
    const Tensor ids = ctx.fetch(sampling.ids);
    for (std::size_t i = 0; i < cases.size(); ++i) chosen[i].push_back(ids.span<std::int32_t>()[i]);
  }
  return chosen;
}

}  // namespace dsmoe::test
