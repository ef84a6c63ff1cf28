// The next token of each request in a pass: bias and mask, penalties, sampling, log probabilities.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "dsmoe/context.h"
#include "infer/job.h"

namespace dsmoe::infer {

struct Chosen {
  std::int32_t id = -1;  // -1: the mask allows none
  std::optional<TokenLogprobs> logprobs;
};

// One token for each job from its row of logits [jobs, V], which are written over. A job's token depends on its own row,
// tokens and options alone. NaN and infinite logits are an Error.
std::vector<Chosen> choose_tokens(Context& ctx, Tensor logits, std::span<const Job* const> jobs);

// Log probability of `id`, and of the `top` most likely tokens, by a row of logits.
TokenLogprobs logprobs_of(std::span<const float> logits, std::int32_t id, Index top);

}  // namespace dsmoe::infer
