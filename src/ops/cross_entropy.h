// The loss of a language model: -log softmax(logits)[target] for each token, and its gradient.
#pragma once

#include <cstdint>
#include <span>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

inline constexpr std::int32_t kIgnoredTarget = -100;  // a token that has no loss and no gradient

// Throws for one that is no token. On a GPU a step that has begun cannot be taken back, so this comes before it.
void check_targets(std::span<const std::int32_t> targets, Index vocab);

// Returns [2] f64, where the work runs: the sum of the losses, and how many tokens are not ignored.
// logits [T, V] f32, targets [T] i32 in [0, V) or kIgnoredTarget.
// token_losses (optional) [T] f32, or f64 on the CPU: each token's loss, 0 where ignored.
// dlogits (optional) [T, V] f32 or bf16: scale * (softmax - onehot), 0 where ignored; may be logits itself.
// A loss that is NaN or infinite gives an Error with the token.
Tensor cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, Tensor* token_losses = nullptr,
                     Tensor* dlogits = nullptr, float scale = 1.0f);

// losses [T]: written for the tokens that have a target.
namespace ref {
void cross_entropy(const Tensor& logits, std::span<const std::int32_t> targets, std::span<double> losses, Tensor* dlogits,
                   float scale);
}
namespace cpu {
void cross_entropy(Context& ctx, const Tensor& logits, std::span<const std::int32_t> targets, std::span<double> losses,
                   Tensor* dlogits, float scale);
}

namespace cuda {
Tensor cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, Tensor* token_losses, Tensor* dlogits,
                     float scale);
}

}  // namespace dsmoe::ops
