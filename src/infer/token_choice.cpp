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
  if (!job.request.mask || job.request.mask->anything()) return true;
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

bool penalises(const SamplerOptions& o) {
  return o.repetition_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0;
}

// Tokens that penalties look back on.
Index window_of(const Job& job) {
  const SamplerOptions& o = job.request.options.sampler;
  return penalises(o) ? std::min(o.repetition_window, static_cast<Index>(job.ids.size()) + job.ahead()) : 0;
}

// Rebuilt for each step: requests come and go, and what a row needs to go on is in its job, but for a token that the pass
// before chose and nobody has seen: its place is filled where the work runs.
ops::Sampling sampling_for(Context& ctx, std::span<const Job* const> jobs, const TokenChoice* before) {
  Index recent = 1, banned = 1;
  for (const Job* job : jobs) {
    recent = std::max(recent, window_of(*job));
    banned = std::max(banned, static_cast<Index>(banned_of(*job).size()));
  }
  Context here(1);
  ops::Sampling s(here, static_cast<Index>(jobs.size()), recent, banned);
  std::vector<ops::TokenCopy> unseen;
  std::vector<std::int32_t> history;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = *jobs[i];
    const Index window = window_of(job), known = window > 0 ? window - job.ahead() : 0;
    history.assign(job.ids.end() - static_cast<std::ptrdiff_t>(known), job.ids.end());
    if (window > 0 && job.ahead() > 0) {
      history.push_back(0);
      unseen.push_back({job.ahead_row, static_cast<std::int32_t>(static_cast<Index>(i) * recent + window - 1)});
    }
    s.start(here, static_cast<Index>(i), job.request.options.sampler, history, banned_of(job),
            job.generated() + job.ahead());
  }
  for (Tensor* t : {&s.rows, &s.recent, &s.banned, &s.ids}) *t = ctx.place(*t);
  if (!unseen.empty()) ops::copy_tokens(ctx, before->ids(), unseen, s.recent);
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

TokenChoice::TokenChoice(Context& ctx, Tensor logits, std::span<const Job* const> jobs, Later& later,
                         const TokenChoice* before)
    : count_(jobs.size()), later_(&later), none_(jobs.size()), originals_(jobs.size()), top_(jobs.size(), -1) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Request& r = jobs[i]->request;
    top_[i] = r.logprobs;
    const bool edits = (r.mask && !r.mask->anything()) || !r.logit_bias.empty();
    if (!edits && r.logprobs < 0) continue;
    Tensor row = logits.rows(static_cast<Index>(i), static_cast<Index>(i) + 1);
    Tensor host = ctx.fetch(row);
    if (r.logprobs >= 0) originals_[i] = host.clone();
    if (!edits) continue;
    none_[i] = !edit(*jobs[i], host.span<float>());
    if (row.device() != Device::kCpu) device::upload(row.raw_mutable(), host.raw(), host.bytes(), ctx.stream());
  }
  if (jobs.empty()) {
    ids_ = ctx.zeros(DType::kI32, {1});  // something to wait for: a fault is its own pass's
  } else {
    ops::Sampling sampling = sampling_for(ctx, jobs, before);
    ops::sample(ctx, logits, sampling);
    ids_ = sampling.ids;
  }
  later_->begin(ctx, ids_);
}

std::vector<Chosen> TokenChoice::get(Context& ctx) {
  const Tensor ids = later_->get(ctx);
  std::vector<Chosen> out(count_);
  for (std::size_t i = 0; i < count_; ++i) {
    if (none_[i]) continue;
    out[i].id = ids.span<std::int32_t>()[i];
    if (top_[i] >= 0) out[i].logprobs = logprobs_of(originals_[i].span<float>(), out[i].id, top_[i]);
  }
  return out;
}

}  // namespace dsmoe::infer
