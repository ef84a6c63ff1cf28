#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/options.h"
#include "core/random.h"

namespace dsmoe {

void SamplerOptions::validate() const { validate_options(*this); }

void SessionOptions::validate() const { validate_options(*this); }

void GenerateOptions::validate() const {
  validate_options(*this);
  sampler.validate();
}

Sampler::Sampler(const SamplerOptions& options, std::vector<std::int32_t> banned)
    : options_(options), banned_(std::move(banned)) {
  options_.validate();
}

std::int32_t Sampler::sample(std::span<const float> logits_in, std::span<const std::int32_t> history) {
  const SamplerOptions& o = options_;
  logits_.assign(logits_in.begin(), logits_in.end());
  for (std::size_t i = 0; i < logits_.size(); ++i)
    if (!std::isfinite(logits_[i]))
      fail(ErrorCode::kNumeric, "the logit of token {} is {}; the model's weights may be damaged", i, logits_[i]);

  if (o.repetition_penalty != 1.0f) {
    const std::size_t window = std::min(history.size(), static_cast<std::size_t>(o.repetition_window));
    std::vector<std::int32_t> recent(history.end() - static_cast<std::ptrdiff_t>(window), history.end());
    std::sort(recent.begin(), recent.end());
    recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
    for (const std::int32_t id : recent) {
      float& x = logits_[static_cast<std::size_t>(id)];
      // A penalty near 0 must not make an infinity of it.
      constexpr float kMost = std::numeric_limits<float>::max();
      x = std::clamp(x > 0 ? x / o.repetition_penalty : x * o.repetition_penalty, -kMost, kMost);
    }
  }
  for (const std::int32_t id : banned_)
    if (id >= 0 && static_cast<std::size_t>(id) < logits_.size())
      logits_[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
  if (o.temperature == 0)
    return static_cast<std::int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());

  candidates_.clear();
  for (std::size_t i = 0; i < logits_.size(); ++i) candidates_.push_back({static_cast<std::int32_t>(i), logits_[i], 0});
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  const std::size_t keep =
      o.top_k > 0 ? std::min(candidates_.size(), static_cast<std::size_t>(o.top_k)) : candidates_.size();
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(keep), candidates_.end(),
                    better);
  candidates_.resize(keep);

  const auto normalise = [&](double temperature) {
    double sum = 0;
    for (Candidate& c : candidates_)
      sum += c.probability = std::exp((static_cast<double>(c.logit) - candidates_.front().logit) / temperature);
    for (Candidate& c : candidates_) c.probability /= sum;
  };
  normalise(1.0);
  double sum = 0;
  std::size_t n = 0;
  while (n < candidates_.size() && (n == 0 || sum < o.top_p)) sum += candidates_[n++].probability;
  candidates_.resize(n);
  const double least = o.min_p * candidates_.front().probability;
  while (candidates_.back().probability < least) candidates_.pop_back();

  normalise(o.temperature);
  double left = Philox(o.seed, /*stream=*/1).uniform(drawn_++);
  for (const Candidate& c : candidates_) {
    left -= c.probability;
    if (left < 0) return c.id;
  }
  return candidates_.back().id;
}

}  // namespace dsmoe
