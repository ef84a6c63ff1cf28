// The gate: which experts each token goes to, with what weight, and the plan by which the grouped products run: all
// (token, slot) pairs sorted by expert. T tokens, D model width, S shared and E routed experts, K chosen per token. Scores,
// softmax and sums are f32 or wider, in training and in inference.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/experts.h"
#include "dsmoe/moe_config.h"
#include "dsmoe/routing_overrides.h"
#include "dsmoe/tensor.h"
#include "ops/rms_norm.h"

namespace dsmoe::ops {

struct Chosen {
  Tensor scores;   // [T, E] f32: softmax or sigmoid of the logits
  Tensor experts;  // [T, K] i32, best first; the lower index wins ties
  Tensor weights;  // [T, K] f32: scores of the chosen, normalised and scaled as the config says
  Tensor lse;      // [T] f32: log of the sum of e^logit; only with router_z_alpha
};

// Which rows of the grouped products belong to which expert and token, as spans for the CPU's loops.
struct ExpertRows {
  Index tokens = 0;                      // T
  std::span<const std::int32_t> offset;  // [X + 1]: expert e has rows [offset[e], offset[e + 1])
  std::span<const std::int32_t> token;   // [R]
  std::span<const float> weight;         // [R]: what the row's output is multiplied by

  Index experts() const { return static_cast<Index>(offset.size()) - 1; }
  Index rows() const { return static_cast<Index>(token.size()); }
};

// The dispatch plan over one list of X experts, shared ones first; a shared expert is one that every token chooses, with
// weight 1 unless they have a gate of their own. The sort is stable, so the rows of an expert are in the order of the
// tokens. R = T * (shared + K) rows.
struct Plan {
  Index tokens = 0, shared = 0, routed = 0, chosen = 0;  // T, entries that every token takes, E, K
  Tensor offset;                                         // [X + 1] i32
  Tensor token;                                          // [R] i32
  Tensor weight;                                         // [R] f32
  Tensor slot_row;                                       // [T, K] i32: the row of the token's k-th choice, the inverse map
  Tensor slot_weight;                                    // [T, K] f32: Chosen::weights
  bool weighs_shared = false;  // the shared experts' rows have weights of their own (shared_gate.h)
  // On a GPU: how the products cut the rows into tiles (ops/cuda/plan.h).
  struct Tiles {
    int rows = 0;          // of a tile, at most
    int column_parts = 1;  // [R, D] outputs are computed and summed in this many parts of D, to save memory in training
    Tensor count;          // [1] i32
    Tensor list;           // [tiles, 4] i32: expert, first row, rows, first gathered row
    Tensor sorted_offset;  // [E + 1] i32: the rows of the routed experts with padding between them
    Tensor token_sorted;   // [T, K] i32
  } tiles;

  Index experts() const { return offset.numel() - 1; }
  Index rows() const { return token.numel(); }
  ExpertRows view() const;  // of a plan in CPU memory
};

struct Gated {
  Chosen chosen;
  Plan plan;
};

// x [T, D] f32 or bf16, weight [E, D], bias [E] f32 (may be empty) is added to the scores for choosing only. `shared`: the
// entries of the list of experts that every token takes. `training`: keep everything that gate_backward() needs.
// NaN or infinite logits or bias are an Error with the layer; on a GPU it is thrown when the Context is waited for.
// Overrides (may be null) mask experts; `config` already has their changes.
Gated gate(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const Tensor& bias, Index shared,
           bool training, const RoutingOverrides* overrides = nullptr);

// The same of x = the norm of a sum, in inference, where the products of `experts` follow. The norm is left in `h`.
Gated gate(Context& ctx, const MoeConfig& config, const AddNorm& x, const Tensor& weight, const Tensor& bias, Index shared,
           const Experts& experts, Tensor& h);

// A plan in which every token goes to each of `shared` experts with weight 1, and to no other.
Plan plan_of_shared(Context& ctx, Index tokens, Index shared);
// To one: a dense feed-forward layer.
inline Plan plan_of_one(Context& ctx, Index tokens) { return plan_of_shared(ctx, tokens, 1); }

// A batch whose tokens are spread over ranks, of which this one has some: losses and gradients are its tokens' part of
// those of the whole batch.
struct BatchLoad {
  std::vector<std::int64_t> load;  // [E] tokens that chose each expert
  Index tokens = 0, sequences = 0;
};

// [4] f64, where the work runs: the balance losses over sequences, the batch and devices, and the router's z-loss, each
// times its coefficient. `sequence_length` divides the number of tokens. `whole`: null where these are all tokens.
Tensor balance_losses(Context& ctx, const MoeConfig& config, const Chosen& chosen, Index sequence_length,
                      const BatchLoad* whole = nullptr);

// From the gradients of the rows' weights, [R, parts] f32 to be added up and found by the plan's slot_row, and aux_scale
// times the losses of
// balance_losses(): adds to dweight [E, D] (overwrites it without `accumulate`), and returns the gate's part of dx [T, D]
// in the dtype that experts_gate_up_backward() takes: f32 on the CPU, that of x on a GPU.
struct GateBackward {
  const Chosen& chosen;
  const Plan& plan;
  const Tensor& row_weight_grads;
  Index sequence_length = 0;
  float aux_scale = 1;
  bool accumulate = true;
  const BatchLoad* whole = nullptr;
  const float* aux_scale_factor = nullptr;  // GPU only, in its memory: multiplies aux_scale; null: 1
};
Tensor gate_backward(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const GateBackward& args,
                     Tensor& dweight);

namespace cuda {
// The plan of a choice that was made on this machine.
Gated gated(Context& ctx, const MoeConfig& config, const Chosen& chosen, Index shared, DType dtype);
Plan plan_of_shared(Context& ctx, Index tokens, Index shared);
Gated gate(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const Tensor& bias, Index shared,
           bool training);
// Empty, and nothing done, where no kernel does it in one go.
std::optional<Gated> gate(Context& ctx, const MoeConfig& config, const AddNorm& x, const Tensor& weight, const Tensor& bias,
                          Index shared, const Experts& experts, Tensor& h);
Tensor balance_losses(Context& ctx, const MoeConfig& config, const Chosen& chosen, Index sequence_length,
                      const BatchLoad* whole);
Tensor gate_backward(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const GateBackward& args,
                     Tensor& dweight);
}  // namespace cuda

}  // namespace dsmoe::ops
