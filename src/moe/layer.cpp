// One layer, in the order in which a token passes it: gate, plan, gate/up products, down products and sum.
// Backward reads the same steps from the end.
#include <algorithm>

#include "core/fail.h"
#include "dsmoe/moe.h"
#include "moe/balance.h"
#include "moe/gate.h"
#include "moe/layer_cuda.h"
#include "moe/plan.h"
#include "moe/saved.h"
#include "moe/weights.h"
#include "ops/elementwise.h"
#include "ops/experts.h"

namespace dsmoe {

namespace {

// [T, D] from [T, D] or [B, S, D].
Tensor as_tokens(const MoeConfig& c, const Tensor& x, const char* name) {
  require((x.rank() == 2 || x.rank() == 3) && x.dim(x.rank() - 1) == c.hidden_size,
          "{} must be [tokens, {}] or [batch, sequence, {}], got {}", name, c.hidden_size, c.hidden_size, x.shape());
  return x.rank() == 2 ? x : x.reshape({x.dim(0) * x.dim(1), x.dim(2)});
}

void check_devices(const Context& ctx, const MoeWeights& weights, const Tensor& x, const char* name) {
  const Device device = ctx.backend() == Backend::kCuda ? Device::kCuda : Device::kCpu;
  const char* const where = device == Device::kCuda ? "the GPU (kCuda)" : "the CPU (kCpu)";
  require(weights.device() == device, "the Context runs on {}, the weights are elsewhere; copy them with to()", where);
  require(x.device() == device, "the Context runs on {}, {} is elsewhere; copy it with to()", where, name);
}

}  // namespace

MoeLayer::MoeLayer(MoeConfig config, MoeWeights weights) : config_(config), weights_(std::move(weights)) {
  config_.validate();
  weights_.check(config_);
}

MoeForward MoeLayer::forward(Context& ctx, const Tensor& x_in, const MoeForwardOptions& options) const {
  const Tensor x = as_tokens(config_, x_in, "x");  // [T, D]
  const Index tokens = x.dim(0);
  const Index sequence = x_in.rank() == 3 ? x_in.dim(1) : options.sequence_length > 0 ? options.sequence_length : tokens;
  require(tokens == 0 || tokens % sequence == 0, "{} tokens are no whole number of sequences of {}", tokens, sequence);
  require(!options.training || options.overrides == nullptr, "routing overrides are for inference, not for training");
  check_devices(ctx, weights_, x_in, "x");
  if (ctx.backend() == Backend::kCuda) {
    require(options.overrides == nullptr, "routing overrides are not supported on a GPU; run this on the CPU");
    return cuda_forward(ctx, config_, weights_, x, x_in.shape(), sequence, options.training);
  }
  const MoeConfig config = options.overrides ? options.overrides->apply(config_) : config_;
  const ops::ExpertWeights experts = expert_list(config, weights_);

  const ops::Chosen chosen = gate_forward(ctx, config, x, weights_.gate, weights_.gate_bias, options.overrides);
  const bool mixed = !experts.forms.empty();  // quantized weights: the shared experts are one wide one
  require(!mixed || !options.training, "quantized weights cannot be trained; load the model in f32 or bf16");
  Plan plan = make_plan(config, chosen, mixed ? std::min<Index>(1, config.shared_experts) : config.shared_experts);
  ops::ExpertActivations kept;
  Tensor h(x.dtype(), {tokens * config.slots(), config.expert_size});  // [R, F]
  ops::experts_gate_up(ctx, experts, plan.view(), x, h, options.training ? &kept : nullptr);

  MoeForward out;
  out.y = Tensor(x.dtype(), x_in.shape());
  Tensor y = out.y.reshape(x.shape());
  ops::experts_down_combine(ctx, experts, plan.view(), h, y);
  out.routing = {chosen.experts, chosen.weights, chosen.scores};
  if (options.training) {
    out.losses = balance_losses(config_, chosen, sequence);
    out.saved = std::make_shared<MoeForward::Saved>(
        MoeForward::Saved{x, sequence, chosen, std::move(plan), std::move(kept), {}, {}, {}});
  }
  return out;
}

void MoeLayer::finish(Context& ctx, MoeForward& forward) const {
  if (ctx.backend() == Backend::kCuda) cuda_finish(ctx, config_, forward);
}

Tensor MoeLayer::backward(Context& ctx, const Tensor& dy_in, const MoeForward& forward, MoeGradients& grads,
                          float aux_scale) const {
  require(forward.saved != nullptr, "backward needs a forward with .training = true");
  const MoeForward::Saved& saved = *forward.saved;
  const Tensor dy = as_tokens(config_, dy_in, "dy");  // [T, D]
  require(dy.shape() == saved.x.shape() && dy.dtype() == saved.x.dtype(), "dy is {} {}, but x was {} {}",
          to_string(dy.dtype()), dy_in.shape(), to_string(saved.x.dtype()), saved.x.shape());
  check_devices(ctx, weights_, dy_in, "dy");
  if (ctx.backend() == Backend::kCuda)
    return cuda_backward(ctx, config_, weights_, dy, forward, grads, aux_scale).reshape(dy_in.shape());
  const Plan& plan = saved.plan;
  const ops::ExpertWeights experts = expert_list(config_, weights_);
  ops::ExpertGrads expert_grads = expert_list(config_, grads);

  const ops::ExpertRowGrads d = ops::experts_down_backward(ctx, experts, plan.view(), dy, saved.activations);
  ops::experts_weight_backward(ctx, plan.view(), saved.x, dy, d, expert_grads);

  Tensor dchosen(DType::kF32, {plan.tokens, config_.experts_per_token});
  for (std::size_t i = 0; i < plan.slot_row.size(); ++i)
    dchosen.data<float>()[i] = d.weight[static_cast<std::size_t>(plan.slot_row[i])];
  const Tensor dscores = balance_backward(config_, saved.chosen, saved.sequence_length, aux_scale);

  Tensor dx(DType::kF32, dy.shape());
  gate_backward(ctx, config_, saved.x, weights_.gate, saved.chosen, dchosen, dscores,
                router_z_backward(config_, saved.chosen, aux_scale), grads.gate, dx);
  ops::experts_gate_up_backward(ctx, experts, plan.view(), d, dx);
  return ops::converted(ctx, dx, dy.dtype()).reshape(dy_in.shape());
}

}  // namespace dsmoe
