// The balance losses on the CPU. With f_i the share of an expert's tokens times E / K, and P_i its mean score, each is
// alpha * sum_i f_i P_i: over every sequence (then averaged), over the whole batch (paper eq. 12-14), and over
// groups of experts that live on one device (eq. 15-17). Counts carry no gradient; it flows through the scores.
// Scores that do not sum to 1 (sigmoid) are divided by their sum per token first.
#pragma once

#include "ops/gate.h"

namespace dsmoe::ops {

// As ops/gate.h says: [4] f64.
Tensor balance_losses_on_cpu(const MoeConfig& config, const Chosen& chosen, Index sequence_length, const BatchLoad* whole);

// scale * gradient of the balance losses in the scores [T, E]; empty when all coefficients are 0.
Tensor balance_backward(const MoeConfig& config, const Chosen& chosen, Index sequence_length, float scale,
                        const BatchLoad* whole);

// scale * gradient of the router z-loss in chosen.lse [T]; empty when there is none.
Tensor router_z_backward(const MoeConfig& config, const Chosen& chosen, float scale, const BatchLoad* whole);

}  // namespace dsmoe::ops
