// The dense feed-forward layer: one SwiGLU expert that every token chooses, by the same grouped products.
#pragma once

#include "dsmoe/context.h"
#include "dsmoe/experts.h"
#include "ops/experts.h"

namespace dsmoe {

// h [T, D] -> [T, D]; `keep` (may be null) is filled for backward.
Tensor mlp_forward(Context& ctx, const Experts& w, const Tensor& h, ops::ExpertActivations* keep);

// Writes grads, f32 (adds with add_grads), and returns dh [T, D]. Uses up what forward kept.
Tensor mlp_backward(Context& ctx, const Experts& w, const Tensor& h, const Tensor& dy, ops::ExpertActivations kept,
                    Experts& grads, bool add_grads);

}  // namespace dsmoe
