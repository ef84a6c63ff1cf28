// The DeepSeekMoE layer: h = sum over shared experts of FFN_i(u) + sum over the chosen routed experts of s_i FFN_i(u).
// The residual is not in it. Forward and backward are explicit; results have the same bits for any number of threads,
// and a token's output does not depend on the other tokens of its batch.
//
//   MoeLayer layer(config, MoeWeights::random(config, DType::kF32, /*seed=*/1));
//   MoeForward out = layer.forward(ctx, x, {.training = true});     // out.y, out.routing, out.losses
//   MoeGradients grads(config);
//   Tensor dx = layer.backward(ctx, dy, out, grads);                // adds to grads
//
// On a GPU (Backend::kCuda) x, dy, the weights and the gradients are in its memory, and calls launch work without waiting
// for it; after a first call of the same sizes they allocate nothing and can be captured in a CUDA graph:
//
//   MoeLayer layer(config, weights.to(config, Device::kCuda));
//   MoeForward out = layer.forward(ctx, x.to(Device::kCuda));
//   layer.finish(ctx, out);                                         // waits
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/moe_config.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

// One SwiGLU: down(silu(gate(x)) * up(x)). Shapes for a width of W: [W, D], [W, D], [D, W].
struct ExpertTensors {
  Tensor gate_proj, up_proj, down_proj;
};

// Weights, all f32 or all bf16 (on the CPU the gate and its bias may be f32 beside bf16 experts); or, on the CPU, f16 and
// quantized, each matrix in a type of its own, with f32 activations and forward only.
struct MoeWeights {
  Tensor gate;                        // [E, D]
  Tensor gate_bias;                   // [E] f32, only with MoeConfig::selection_bias
  std::vector<ExpertTensors> routed;  // E experts of width F
  ExpertTensors shared;               // the shared experts side by side, width S * F; empty when S = 0
  // On a GPU, instead of the two above: all experts in two stacks, shared ones first.
  Tensor gate_up;  // [S + E, 2, F, D]: gate_proj, then up_proj
  Tensor down;     // [S + E, D, F]

  // The reference's initialisation: gate uniform in ±1/sqrt(D), the rest normal with deviation `std`.
  static MoeWeights random(const MoeConfig& config, DType dtype, std::uint64_t seed, float std = 0.02f);
  void check(const MoeConfig& config) const;  // throws Error naming the tensor, what was expected and found
  Device device() const { return gate.device(); }
  MoeWeights to(const MoeConfig& config, Device device) const;  // copies; the same handles when nothing changes
};

// Gradients in f32, in the shapes of the weights. backward() adds to them.
struct MoeGradients {
  MoeGradients() = default;
  explicit MoeGradients(const MoeConfig& config, Device device = Device::kCpu);
  void zero();  // on a GPU: waits
  MoeGradients to(const MoeConfig& config, Device device) const;

  Tensor gate;
  std::vector<ExpertTensors> routed;
  ExpertTensors shared;
  Tensor gate_up, down;  // on a GPU, as in MoeWeights
};

// Which experts each token chose.
struct Routing {
  Tensor experts;  // [T, K] i32, best first; the lower index wins ties
  Tensor weights;  // [T, K] f32, what the experts' outputs are multiplied by
  Tensor scores;   // [T, E] f32, of all routed experts
};

// Each with its coefficient in it; 0 where the coefficient is.
struct BalanceLosses {
  double sequence = 0, batch = 0, device = 0;
  double router_z = 0;  // not of balance, but of the router's logits; it is added alike
  double total() const { return sequence + batch + device + router_z; }
};

struct MoeForward {
  Tensor y;  // shape and dtype of x
  Routing routing;
  BalanceLosses losses;  // only in training; from a GPU they come with finish()

  struct Saved;
  std::shared_ptr<const Saved> saved;  // what backward needs; only in training
  Tensor status;                       // a GPU's, [4]: the first token whose scores are not finite (i32), the losses (f32)
};

struct RoutingOverrides;

struct MoeForwardOptions {
  bool training = false;      // compute balance losses and keep what backward needs
  Index sequence_length = 0;  // for x [T, D] that holds several sequences; 0: one sequence. Known for x [B, S, D].
  const RoutingOverrides* overrides = nullptr;  // routing_overrides.h; refused in training
};

class MoeLayer {
 public:
  MoeLayer(MoeConfig config, MoeWeights weights);

  const MoeConfig& config() const { return config_; }
  const MoeWeights& weights() const { return weights_; }

  // x [T, D] or [B, S, D], in the dtype of the experts (f32 for f16 and quantized ones).
  MoeForward forward(Context& ctx, const Tensor& x, const MoeForwardOptions& options = {}) const;

  // Waits for a GPU's results and fetches the losses. A NaN or infinite score is an Error here, as it is in forward() on
  // the CPU, where finish() has nothing to do.
  void finish(Context& ctx, MoeForward& forward) const;

  // The gradient of <y, dy> + aux_scale * losses.total(): adds to grads and returns dx. A GPU uses up what forward saved:
  // there, one backward for each forward.
  Tensor backward(Context& ctx, const Tensor& dy, const MoeForward& forward, MoeGradients& grads,
                  float aux_scale = 1.0f) const;

 private:
  MoeConfig config_;
  MoeWeights weights_;
};

}  // namespace dsmoe
