// Chooses the next token from logits. The same seed and the same logits give the same tokens, on any machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsmoe/generate_options.h"

namespace dsmoe {

class Sampler {
 public:
  // `banned` tokens are never chosen: their logits count as minus infinity.
  explicit Sampler(const SamplerOptions& options, std::vector<std::int32_t> banned = {});
  // logits [V]; history: the tokens so far, latest last. NaN and infinite logits are an Error.
  std::int32_t sample(std::span<const float> logits, std::span<const std::int32_t> history);

 private:
  struct Candidate {
    std::int32_t id;
    float logit;
    double probability;
  };

  SamplerOptions options_;
  std::vector<std::int32_t> banned_;
  std::uint64_t drawn_ = 0;
  std::vector<float> logits_;
  std::vector<Candidate> candidates_;
};

}  // namespace dsmoe
