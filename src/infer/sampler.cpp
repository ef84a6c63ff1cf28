#include "infer/sampler.h"

#include <algorithm>

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

std::int32_t Sampler::take(Context& ctx) {
  const Tensor id = chosen_[taken_++ % kAhead].get(ctx);
  return id.span<std::int32_t>()[0];
}

}  // namespace dsmoe
