// The next token of each request in a pass: bias and mask, penalties, sampling, log probabilities.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/later.h"
#include "dsmoe/context.h"
#include "infer/job.h"

namespace dsmoe::infer {

struct Chosen {
  std::int32_t id = -1;  // -1: the mask allows none
  std::optional<TokenLogprobs> logprobs;
};

// One token for each job from its row of logits [jobs, V], which are written over. A job's token depends on its own row,
// tokens and options alone. Choosing and looking are two steps, between which other work may be launched; a job whose
// logits somebody looks at (log probabilities, bias, mask) is waited for at once.
class TokenChoice {
 public:
  // `later` brings the tokens here; it is the choice's own until get(), and kept for others after it, since making one
  // waits for the GPU. `before`: what the pass before chose, for jobs whose last token is still there (Job::ahead_row).
  TokenChoice(Context& ctx, Tensor logits, std::span<const Job* const> jobs, Later& later, const TokenChoice* before);

  const Tensor& ids() const { return ids_; }  // [jobs] i32, where the work runs
  // Waits for them. NaN and infinite logits are an Error, as is any fault of the passes up to here.
  std::vector<Chosen> get(Context& ctx);

 private:
  std::size_t count_;
  Tensor ids_;
  Later* later_;
  std::vector<bool> none_;         // no token is allowed
  std::vector<Tensor> originals_;  // logits of rows whose log probabilities are wanted
  std::vector<Index> top_;
};

// Log probability of `id`, and of the `top` most likely tokens, by a row of logits.
TokenLogprobs logprobs_of(std::span<const float> logits, std::int32_t id, Index top);

}  // namespace dsmoe::infer
