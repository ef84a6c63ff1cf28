// From gate logits to each token's experts, and the gradient back to the logits, on the CPU: two steps of the gate
// (ops/gate.h). T tokens, E routed experts, K chosen. Sums and exponentials in f32 or wider whatever the model's dtype.
#pragma once

#include "ops/gate.h"

namespace dsmoe::ops {

// bias [E] f32 (may be empty) is added to the scores for choosing only.
// NaN or infinite logits give an Error with the layer and the token, a NaN or infinite bias one with the layer.
// Overrides (may be null) mask experts; `config` already has their K.
Chosen route(Context& ctx, const MoeConfig& config, const Tensor& logits, const Tensor& bias,
             const RoutingOverrides* overrides = nullptr);

// dlogits [T, E] f32 from dweights [T, K] and, when not empty, dscores [T, E] (the balance losses' part) and dlse [T].
Tensor route_backward(Context& ctx, const MoeConfig& config, const Chosen& chosen, const Tensor& dweights,
                      const Tensor& dscores, const Tensor& dlse = Tensor());

namespace ref {
void scores_row(ScoreFunction score, Index e, const float* logits, float* scores);
}
namespace cpu {
void scores_row(ScoreFunction score, Index e, const float* logits, float* scores);
}

}  // namespace dsmoe::ops
