// The DeepSeekMoE layer: h = sum over shared experts of FFN_i(u) + sum over the chosen routed experts of s_i FFN_i(u).
// The residual connection is not included. Forward and backward are explicit calls; results have the same bits for any
// number of threads, and a token's output does not depend on the other tokens of its batch.
//
//   MoeLayer layer(config, MoeWeights::random(config, DType::kF32, /*seed=*/1));
//   MoeForward out = layer.forward(ctx, x, {.training = true});     // out.y, out.routing
//   MoeGradients grads(config);
//   Tensor dx = layer.backward(ctx, dy, out, grads);                // adds to grads
//   BalanceLosses losses = fetch_losses(ctx, out);
//
// On a GPU (Backend::kCuda) x, dy, the weights and the gradients are in its memory, and calls launch work without waiting
// for it; after a first call they can be captured in a CUDA graph:
//
//   Context ctx(0, Backend::kCuda);
//   MoeLayer layer(config, weights.to(Device::kCuda));
//   MoeForward out = layer.forward(ctx, ctx.place(x));
//   Tensor y = ctx.fetch(out.y);                                    // waits; a NaN in the gate is an Error here
#pragma once

#include <cstdint>
#include <memory>

#include "dsmoe/context.h"
#include "dsmoe/experts.h"
#include "dsmoe/moe_config.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

// Experts are f32, bf16 or, listed on the CPU, f16 and quantized: then activations are f32, forward only. The gate is f32
// or bf16; on a GPU it has the dtype of the experts.
struct MoeWeights {
  Tensor gate;              // [E, D]
  Tensor gate_bias;         // [E] f32, only with MoeConfig::selection_bias
  Experts experts;          // S + E, shared ones first
  Tensor shared_gate = {};  // [D] in the dtype of the gate, only with MoeConfig::shared_gate

  // Stacked. The reference's initialisation: gate uniform in ±1/sqrt(D), the rest normal with deviation `std`.
  static MoeWeights random(const MoeConfig& config, DType dtype, std::uint64_t seed, float std = 0.02f);
  void check(const MoeConfig& config) const;  // throws Error naming the tensor, what was expected and found
  Device device() const { return gate.device(); }
  MoeWeights to(Device device) const;  // copies; the same handles when nothing changes
};

// Gradients in the shapes of stacked weights, zero at first. backward() accumulates into them unless its options say
// otherwise. f32 by default; bf16 gradients take half the memory and are meant to be overwritten, because accumulating
// in bf16 would round every sum.
struct MoeGradients {
  MoeGradients() = default;
  explicit MoeGradients(const MoeConfig& config, Device device = Device::kCpu, DType dtype = DType::kF32);
  void zero(Context& ctx);

  Tensor gate;
  Experts experts;
  Tensor shared_gate = {};  // only with MoeConfig::shared_gate
};

// Which experts each token chose.
struct Routing {
  Tensor experts;  // [T, K] i32, best first; the lower index wins ties
  Tensor weights;  // [T, K] f32, what the experts' outputs are multiplied by
  Tensor scores;   // [T, E] f32, of all routed experts
};

// Each times its coefficient; 0 when disabled.
struct BalanceLosses {
  double sequence = 0, batch = 0, device = 0;
  double router_z = 0;  // router z-loss; not a balance loss, but part of total()
  double total() const { return sequence + batch + device + router_z; }
};

struct MoeForward {
  Tensor y;  // shape and dtype of x
  Routing routing;
  // Only in training, where the layer ran.
  Tensor losses;  // [4] f64, the members of BalanceLosses
  Tensor offset;  // [S + E + 1] i32: expert e was given rows [offset[e], offset[e + 1]) of all (token, expert) pairs

  struct Saved;
  std::shared_ptr<Saved> saved;  // what backward needs; only in training
};

BalanceLosses fetch_losses(Context& ctx, const MoeForward& forward);  // on a GPU: waits

struct RoutingOverrides;
namespace ops {
struct AddNorm;
}

namespace parallel {
class Comm;
}

struct MoeForwardOptions {
  bool training = false;      // compute balance losses and keep what backward needs
  bool keep_experts = true;   // in training: x and the products of gate and up too; else backward is given x again
  Index sequence_length = 0;  // for x [T, D] that holds several sequences; 0: one sequence. Known for x [B, S, D].
  const RoutingOverrides* overrides = nullptr;  // routing_overrides.h; refused in training
  // In training: ranks that have the other tokens of this batch, for the library's own use. Losses are then these tokens'
  // part of those of the whole batch.
  parallel::Comm* others = nullptr;
};

struct MoeBackwardOptions {
  float aux_scale = 1.0f;  // multiplies the gradient of the balance losses
  bool accumulate = true;  // add to the gradients; false: overwrite them
  // [1] f32 where the layer runs, or empty: multiplies aux_scale. On a GPU earlier work on the stream may still compute it.
  Tensor aux_scale_factor = {};
  Tensor x = {};  // after a forward without keep_experts: what it was given
};

class MoeLayer {
 public:
  MoeLayer(MoeConfig config, MoeWeights weights);

  const MoeConfig& config() const { return config_; }
  const MoeWeights& weights() const { return weights_; }

  // x [T, D] or [B, S, D], in the dtype of the experts (f32 for f16 and quantized ones).
  // A NaN or infinite score is an Error that names layer and token; on a GPU it is thrown by synchronize() or fetch().
  MoeForward forward(Context& ctx, const Tensor& x, const MoeForwardOptions& options = {}) const;
  // The same of x = a norm that the layer may take itself, for a model's block.
  MoeForward forward(Context& ctx, const ops::AddNorm& x, const MoeForwardOptions& options) const;

  // The gradient of <y, dy> + aux_scale * the balance losses: accumulates into grads and returns dx. Frees what forward
  // saved, so each forward has at most one backward.
  Tensor backward(Context& ctx, const Tensor& dy, const MoeForward& forward, MoeGradients& grads,
                  const MoeBackwardOptions& options = {}) const;

 private:
  MoeConfig config_;
  MoeWeights weights_;
};

}  // namespace dsmoe
