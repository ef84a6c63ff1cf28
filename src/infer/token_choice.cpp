#include "infer/token_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/device.h"
#include "ops/sample.h"
#include "ops/sample_math.h"

namespace dsmoe::infer {

namespace {

// Of a token that the mask forbids. Finite, since others are an error; it has no mass below a temperature of 1e36.
constexpr float kForbidden = std::numeric_limits<float>::lowest();

// Bias and mask. False: no token is allowed.
bool edit(const Job& job, std::span<float> logits) {
  for (const auto& [id, bias] : job.request.logit_bias)
    if (id >= 0 && static_cast<std::size_t>(id) < logits.size()) logits[static_cast<std::size_t>(id)] += bias;
  if (!job.request.mask) return true;
  std::vector<std::uint32_t> bits((logits.size() + 31) / 32);
  if (!job.request.mask->allowed(bits)) return false;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if ((bits[i / 32] >> i % 32 & 1) == 0) logits[i] = kForbidden;
  return true;
}

std::span<const std::int32_t> banned_of(const Job& job) {
  const GenerateOptions& o = job.request.options;
  return o.ignore_eos ? std::span<const std::int32_t>(o.end_tokens) : std::span<const std::int32_t>();
}

// Rebuilt for each step: requests come and go, and what a row needs to go on is in its job.
ops::Sampling sampling_for(Context& ctx, std::span<const Job* const> jobs) {
  Index recent = 1, banned = 1;
  for (const Job* job : jobs) {
    const auto tokens = static_cast<Index>(job->ids.size());
    recent = std::max(recent, std::min(job->request.options.sampler.repetition_window, tokens));
    banned = std::max(banned, static_cast<Index>(banned_of(*job).size()));
  }
  Context here(1);
  ops::Sampling s(here, static_cast<Index>(jobs.size()), recent, banned);
  for (std::size_t i = 0; i < jobs.size(); ++i)
    s.start(here, static_cast<Index>(i), jobs[i]->request.options.sampler, jobs[i]->ids, banned_of(*jobs[i]),
            jobs[i]->generated());
  for (Tensor* t : {&s.rows, &s.recent, &s.banned, &s.ids}) *t = ctx.place(*t);
  return s;
}

}  // namespace

TokenLogprobs logprobs_of(std::span<const float> logits, std::int32_t id, Index top) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - largest));
  const double base = static_cast<double>(largest) + std::log(sum);
  const auto value = [&](std::size_t i) {
    return Logprob{static_cast<std::int32_t>(i), static_cast<float>(static_cast<double>(logits[i]) - base)};
  };
  TokenLogprobs out;
  if (id >= 0) out.token = value(static_cast<std::size_t>(id));
  std::vector<std::uint64_t> codes(logits.size());
  const auto count = std::min(logits.size(), static_cast<std::size_t>(std::max<Index>(top, 0)));
  if (count == 0) return out;
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = ops::code_of(logits[i], static_cast<std::uint32_t>(i));
  std::partial_sort(codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(count), codes.end());
  for (std::size_t i = 0; i < count; ++i) out.top.push_back(value(static_cast<std::size_t>(ops::id_of(codes[i]))));
  return out;
}

std::vector<Chosen> choose_tokens(Context& ctx, Tensor logits, std::span<const Job* const> jobs) {
  std::vector<Chosen> out(jobs.size());
  if (jobs.empty()) return out;
  std::vector<Tensor> originals(jobs.size());  // of rows that somebody looks at
  std::vector<bool> none(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Request& r = jobs[i]->request;
    const bool edits = r.mask || !r.logit_bias.empty();
    if (!edits && r.logprobs < 0) continue;
    Tensor row = logits.rows(static_cast<Index>(i), static_cast<Index>(i) + 1);
    Tensor host = ctx.fetch(row);
    if (r.logprobs >= 0) originals[i] = host.clone();
    if (!edits) continue;
    none[i] = !edit(*jobs[i], host.span<float>());
    if (row.device() != Device::kCpu) device::upload(row.raw_mutable(), host.raw(), host.bytes(), ctx.stream());
  }
  ops::Sampling sampling = sampling_for(ctx, jobs);
  ops::sample(ctx, logits, sampling);
  const Tensor ids = ctx.fetch(sampling.ids);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (none[i]) continue;
    out[i].id = ids.span<std::int32_t>()[i];
    if (jobs[i]->request.logprobs >= 0)
      out[i].logprobs = logprobs_of(originals[i].span<float>(), out[i].id, jobs[i]->request.logprobs);
  }
  return out;
}

}  // namespace dsmoe::infer
