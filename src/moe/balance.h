// The balance losses. With f_i the share of an expert's tokens times E / K, and P_i its mean score, each is
// alpha * sum_i f_i P_i: over every sequence (then averaged), over the whole batch (paper eq. 12-14), and over
// groups of experts that live on one device (eq. 15-17). Counts carry no gradient; it flows through the scores.
// Scores that do not sum to 1 (sigmoid) are divided by their sum per token first.
#pragma once

#include "dsmoe/moe.h"
#include "ops/routing.h"

namespace dsmoe {

// sequence_length divides the number of tokens.
BalanceLosses balance_losses(const MoeConfig& config, const ops::Chosen& chosen, Index sequence_length);

// scale * gradient of the balance losses in the scores [T, E]; empty when all coefficients are 0.
Tensor balance_backward(const MoeConfig& config, const ops::Chosen& chosen, Index sequence_length, float scale);

// scale * gradient of the router's z-loss in chosen.lse [T]; empty when there is none.
Tensor router_z_backward(const MoeConfig& config, const ops::Chosen& chosen, float scale);

}  // namespace dsmoe
