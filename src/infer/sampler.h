// Chooses the next token from logits. The same seed and the same logits give the same tokens, on any machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsmoe/tensor.h"

namespace dsmoe {

// Applied in this order; the defaults are those that people know from llama.cpp.
struct SamplerOptions {
  float repetition_penalty = 1.0f;  // over 1: logits of recent tokens are divided (or multiplied if negative) by it
  Index repetition_window = 64;     // how many recent tokens that concerns
  Index top_k = 40;                 // keep the k most likely; 0: all
  float top_p = 0.95f;              // keep the fewest that have this much probability together; 1: all
  float min_p = 0.05f;              // keep those at least this much as likely as the best; 0: all
  float temperature = 0.8f;         // 0: always the most likely token (the lowest id among equals)
  std::uint64_t seed = 0;

  void validate() const;  // throws Error naming the option
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  // logits [V]; history: the tokens so far, latest last.
  std::int32_t sample(std::span<const float> logits, std::span<const std::int32_t> history);

 private:
  struct Candidate {
    std::int32_t id;
    float logit;
    double probability;
  };

  SamplerOptions options_;
  std::uint64_t drawn_ = 0;
  std::vector<float> logits_;
  std::vector<Candidate> candidates_;
};

}  // namespace dsmoe
