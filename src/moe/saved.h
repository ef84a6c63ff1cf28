// What a forward pass in training keeps for backward, on the CPU or on a GPU.
#pragma once

#include "dsmoe/moe.h"
#include "moe/plan.h"
#include "ops/experts.h"
#include "ops/routing.h"

namespace dsmoe {

struct MoeForward::Saved {
  Tensor x;  // [T, D]
  Index sequence_length = 0;
  ops::Chosen chosen;
  Plan plan;
  ops::ExpertActivations activations;

  // On a GPU, instead of the last two. Backward turns gate_up into its gradient.
  Tensor device_plan;
  Tensor gate_up;  // [R, 2F]
  mutable bool used = false;
};

}  // namespace dsmoe
