#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/fail.h"
#include "core/options.h"

namespace dsmoe {

void SessionOptions::validate() const { validate_options(*this); }

void GenerateOptions::validate() const {
  validate_options(*this);
  sampler.validate();
}

void Sampler::start(Context& ctx, const SamplerOptions& options, std::span<const std::int32_t> history,
                    std::span<const std::int32_t> banned) {
  constexpr Index kUsualBanned = 16;
  const auto count = static_cast<Index>(banned.size());
  // Kept as long as it has room: captured passes are made for its memory.
  if (!sampling_ || sampling_->banned.dim(1) < count) sampling_.emplace(ctx, 1, context_, std::max(count, kUsualBanned));
  sampling_->start(ctx, 0, options, history, banned);
  begun_ = taken_ = 0;
}

void Sampler::choose(Context& ctx, Tensor logits) {
  choose_by(ctx, [&](ops::Sampling& sampling) { ops::sample(ctx, logits, sampling); });
}

void Sampler::choose(Context& ctx, Tensor logits, std::span<const std::uint64_t> allowed) {
  require(logits.device() == Device::kCpu, "a grammar needs logits on the CPU; use the device cpu");
  const std::span<float> row = logits.span<float>();
  bool any = false;
  for (std::size_t id = 0; id < row.size(); ++id) {
    const bool good = id / 64 < allowed.size() && (allowed[id / 64] >> (id % 64) & 1);
    any |= good;
    // The lowest finite logit: its probability is 0 beside any other, and a NaN of the model is still found among the rest.
    if (!good && !std::isnan(row[id])) row[id] = std::numeric_limits<float>::lowest();
  }
  if (!any) fail(ErrorCode::kUnsupported, "no token of the vocabulary can continue the text within the grammar");
  choose(ctx, logits);
}

std::int32_t Sampler::take(Context& ctx) {
  const Tensor id = chosen_[taken_++ % kAhead].get(ctx);
  return id.span<std::int32_t>()[0];
}

}  // namespace dsmoe
