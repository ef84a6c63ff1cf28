// The gate: which experts a token goes to, and with what weight. Always in f32, in training and inference alike.
#pragma once

#include "dsmoe/context.h"
#include "dsmoe/moe.h"
#include "dsmoe/routing_overrides.h"
#include "ops/routing.h"

namespace dsmoe {

// x [T, D] f32 or bf16, weight [E, D], bias [E] or empty. With overrides, config is what they make of the layer's.
ops::Chosen gate_forward(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const RoutingOverrides* overrides = nullptr);

// From the gradients of the chosen weights [T, K], of the scores [T, E] and of the logits' log sums [T] (both may be
// empty): adds to dweight [E, D] and writes dx [T, D] f32.
void gate_backward(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const ops::Chosen& chosen,
                   const Tensor& dchosen, const Tensor& dscores, const Tensor& dlse, Tensor& dweight, Tensor& dx);

}  // namespace dsmoe
