// Chooses a token for each row of logits, on every backend the same: penalties for recent tokens, then the best token, or
// one drawn from those that top-k, top-p and min-p leave. The order of tokens is the larger logit first, the lower id
// among equals. ops/sample_math.h is the arithmetic; docs/design/sampling.md says why.
#pragma once

#include <cstdint>
#include <span>

#include "dsmoe/context.h"
#include "dsmoe/generate_options.h"
#include "dsmoe/tensor.h"
#include "ops/sample_math.h"

namespace dsmoe::ops {

// The rows' options and what they have chosen so far, where the work runs. Copies are handles of the same.
struct Sampling {
  // Room for `recent` tokens that penalties look back on, and for `banned` tokens that are never chosen, in each row.
  Sampling(Context& ctx, Index rows, Index recent, Index banned);

  // A row from its beginning: the tokens so far, latest last, and tokens that must not be chosen. A row that goes on where
  // another Sampling left it gives the number of its tokens that were chosen, `chosen`.
  void start(Context& ctx, Index row, const SamplerOptions& options, std::span<const std::int32_t> history,
             std::span<const std::int32_t> banned_tokens = {}, Index chosen = 0);

  Tensor rows;    // SampleRow [R], as i32
  Tensor recent;  // [R, recent] i32: rings
  Tensor banned;  // [R, banned] i32
  Tensor ids;     // [R] i32: the tokens chosen last
};

// logits [R, V] f32: read, and written over. The chosen tokens are in sampling.ids, and each row's recent tokens and random
// numbers go on from there. A logit that is NaN or infinite is an Error. When all tokens of a row are banned, its first one
// is chosen.
void sample(Context& ctx, Tensor& logits, Sampling& sampling);

// Tokens that follow on others before this machine has seen them: for each pair, number `to` of `into` becomes number
// `from` of `chosen`. Both i32, where the work runs.
struct TokenCopy {
  std::int32_t from, to;
};
void copy_tokens(Context& ctx, const Tensor& chosen, std::span<const TokenCopy> pairs, Tensor& into);

// What a CPU needs to know of one row.
struct SampleTask {
  std::span<float> logits;
  const SampleRow& row;
  std::span<const std::int32_t> recent, banned;
};
namespace ref {
std::int32_t sample(const SampleTask& task);
}
namespace cpu {
std::int32_t sample(const SampleTask& task, std::span<std::uint64_t> codes);  // codes [V]: memory to use
}
namespace cuda {
void sample(Context& ctx, Tensor& logits, Sampling& sampling);
void copy_tokens(Context& ctx, const Tensor& chosen, const Tensor& pairs, Tensor& into);
}  // namespace cuda

}  // namespace dsmoe::ops
