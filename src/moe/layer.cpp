// One layer, in the order in which a token passes it: gate and plan, gate/up products, down products and sum.
// Backward reads the same steps from the end. Every step is an op with an implementation per backend.
#include "core/fail.h"
#include "dsmoe/moe.h"
#include "dsmoe/routing_overrides.h"
#include "moe/batch_load.h"
#include "ops/experts.h"
#include "ops/gate.h"
#include "ops/shared_gate.h"

namespace dsmoe {

struct MoeForward::Saved {
  Tensor x;  // [T, D]; empty, like the activations, where backward computes them again
  Index sequence_length = 0;
  ops::Chosen chosen;
  ops::Plan plan;
  ops::ExpertActivations activations;
  bool used = false;                         // backward has taken the activations
  std::optional<ops::BatchLoad> whole = {};  // of a batch that is spread over ranks
};

namespace {

// [T, D] from [T, D] or [B, S, D].
Tensor as_tokens(const MoeConfig& c, const Tensor& x, const char* name) {
  require((x.rank() == 2 || x.rank() == 3) && x.dim(x.rank() - 1) == c.hidden_size,
          "{} must be [tokens, {}] or [batch, sequence, {}], got {}", name, c.hidden_size, c.hidden_size, x.shape());
  return x.rank() == 2 ? x : x.reshape({x.dim(0) * x.dim(1), x.dim(2)});
}

void check_device(const Context& ctx, Device device, const char* name) {
  const char* const where = ctx.device() == Device::kCuda ? "a GPU (kCuda)" : "the CPU (kCpu)";
  require(device == ctx.device(), "the Context runs on {}, {} is elsewhere; copy it there with to() or place()", where,
          name);
}

void check_gradients(const MoeConfig& c, const MoeGradients& g) {
  require(g.gate.shape() == Shape({c.routed_experts, c.hidden_size}) && g.experts.stacked() && g.experts &&
              g.gate.dtype() == g.experts.dtype(),
          "the gradient of the gate is {} {}, expected {} [{}, {}] beside stacked experts", to_string(g.gate.dtype()),
          g.gate.shape(), to_string(g.experts.dtype()), c.routed_experts, c.hidden_size);
  require(!c.shared_gate || (g.shared_gate.shape() == Shape({c.hidden_size}) && g.shared_gate.dtype() == g.gate.dtype()),
          "the gradient of the shared experts' gate is {} {}, expected {} [{}]", to_string(g.shared_gate.dtype()),
          g.shared_gate.shape(), to_string(g.gate.dtype()), c.hidden_size);
  g.experts.check(c.shared_experts, c.routed_experts, c.expert_size, c.hidden_size);
}

// What multiplies the gradient of the balance losses: a number, and on a GPU one that its memory has.
struct AuxScale {
  float known;
  const float* factor = nullptr;
};
AuxScale aux_scale(const Context& ctx, const MoeBackwardOptions& options) {
  const Tensor& factor = options.aux_scale_factor;
  if (factor.numel() == 0) return {options.aux_scale};
  require(factor.numel() == 1 && factor.dtype() == DType::kF32, "aux_scale_factor is {} {}, expected f32 [1]",
          to_string(factor.dtype()), factor.shape());
  check_device(ctx, factor.device(), "aux_scale_factor");
  const auto* const at = static_cast<const float*>(factor.raw());
  if (factor.device() == Device::kCuda) return {options.aux_scale, at};
  return {options.aux_scale * *at};
}

}  // namespace

MoeLayer::MoeLayer(MoeConfig config, MoeWeights weights) : config_(config), weights_(std::move(weights)) {
  config_.validate();
  weights_.check(config_);
}

MoeForward MoeLayer::forward(Context& ctx, const ops::AddNorm& x, const MoeForwardOptions& options) const {
  if (options.training || options.overrides || config_.shared_gate) return forward(ctx, ops::add_rms_norm(ctx, x), options);
  const Experts& experts = weights_.experts;
  Tensor h;
  const auto [chosen, plan] =
      ops::gate(ctx, config_, x, weights_.gate, weights_.gate_bias, experts.count() - config_.routed_experts, experts, h);
  MoeForward out;
  out.y = ops::experts_down_combine(ctx, experts, plan, ops::experts_gate_up(ctx, experts, plan, h, nullptr));
  out.routing = {chosen.experts, chosen.weights, chosen.scores};
  return out;
}

MoeForward MoeLayer::forward(Context& ctx, const Tensor& x_in, const MoeForwardOptions& options) const {
  const Tensor x = as_tokens(config_, x_in, "x");  // [T, D]
  const Index tokens = x.dim(0);
  const Index sequence = x_in.rank() == 3 ? x_in.dim(1) : options.sequence_length > 0 ? options.sequence_length : tokens;
  require(tokens == 0 || tokens % sequence == 0, "{} tokens are no whole number of sequences of {}", tokens, sequence);
  require(!options.training || options.overrides == nullptr, "routing overrides are for inference, not for training");
  require(!options.training || !weights_.experts.mixed(),
          "quantized weights cannot be trained; load the model in f32 or bf16");
  check_device(ctx, weights_.device(), "the layer's weights");
  check_device(ctx, x.device(), "x");
  require(x.dtype() == weights_.experts.dtype(), "x is {}, but the experts take {}", to_string(x.dtype()),
          to_string(weights_.experts.dtype()));
  const MoeConfig config = options.overrides ? options.overrides->apply(config_) : config_;
  const Index entries = weights_.experts.count(), shared = entries - config.routed_experts;
  const bool dropped = config.shared_experts == 0 && shared > 0;  // the shared experts, by an override
  const Experts experts = dropped ? weights_.experts.range(shared, entries) : weights_.experts;

  auto [chosen, plan] = ops::gate(ctx, config, x, weights_.gate, weights_.gate_bias, dropped ? 0 : shared, options.training,
                                  options.overrides);
  if (config_.shared_gate && !dropped) ops::weigh_shared(ctx, x, weights_.shared_gate, plan);
  std::vector<std::int64_t> load;
  if (options.training && needs_load_of_all(config_, options.others)) load = load_here(ctx, config_, plan);
  const bool keeps = options.training && (options.keep_experts || tokens == 0);
  ops::ExpertActivations kept;
  const Tensor h = ops::experts_gate_up(ctx, experts, plan, x, keeps ? &kept : nullptr);
  MoeForward out;
  out.y = ops::experts_down_combine(ctx, experts, plan, h).reshape(x_in.shape());
  out.routing = {chosen.experts, chosen.weights, chosen.scores};
  if (options.training) {
    std::optional<ops::BatchLoad> whole = batch_load(config_, load, tokens, sequence, options.others);
    out.losses = ops::balance_losses(ctx, config_, chosen, sequence, whole ? &*whole : nullptr);
    out.offset = plan.offset;
    out.saved = std::make_shared<MoeForward::Saved>(MoeForward::Saved{
        keeps ? x : Tensor(), sequence, std::move(chosen), std::move(plan), std::move(kept), false, std::move(whole)});
  }
  return out;
}

Tensor MoeLayer::backward(Context& ctx, const Tensor& dy_in, const MoeForward& forward, MoeGradients& grads,
                          const MoeBackwardOptions& options) const {
  require(forward.saved != nullptr, "backward needs a forward with .training = true");
  MoeForward::Saved& saved = *forward.saved;
  require(!saved.used, "this forward pass already had its backward pass, which uses up what forward saved");
  const bool kept = saved.activations.gate_up.raw() != nullptr || saved.plan.tokens == 0;
  const Tensor x = kept ? saved.x : as_tokens(config_, options.x, "x");  // [T, D]
  const Tensor dy = as_tokens(config_, dy_in, "dy");                     // [T, D]
  require(x.dim(0) == saved.plan.tokens, "x has {} tokens, forward had {}", x.dim(0), saved.plan.tokens);
  require(dy.shape() == x.shape() && dy.dtype() == x.dtype(), "dy is {} {}, but x was {} {}", to_string(dy.dtype()),
          dy_in.shape(), to_string(x.dtype()), x.shape());
  check_device(ctx, dy.device(), "dy");
  check_device(ctx, grads.gate.device(), "the gradients");
  check_gradients(config_, grads);
  const AuxScale aux = aux_scale(ctx, options);
  saved.used = true;
  if (!kept) static_cast<void>(ops::experts_gate_up(ctx, weights_.experts, saved.plan, x, &saved.activations));

  ops::ExpertRowGrads d = ops::experts_down_backward(ctx, weights_.experts, saved.plan, dy, std::move(saved.activations));
  ops::experts_weight_backward(ctx, saved.plan, x, dy, d, grads.experts, options.accumulate);
  Tensor dx = ops::gate_backward(ctx, config_, x, weights_.gate,
                                 {saved.chosen, saved.plan, d.weight, saved.sequence_length, aux.known, options.accumulate,
                                  saved.whole ? &*saved.whole : nullptr, aux.factor},
                                 grads.gate);
  if (config_.shared_gate)
    ops::weigh_shared_backward(ctx, x, weights_.shared_gate, saved.plan, {d.weight, options.accumulate}, grads.shared_gate,
                               dx);
  return ops::experts_gate_up_backward(ctx, weights_.experts, saved.plan, d, std::move(dx)).reshape(dy_in.shape());
}

BalanceLosses fetch_losses(Context& ctx, const MoeForward& forward) {
  if (forward.losses.numel() == 0) return {};
  const Tensor losses = ctx.fetch(forward.losses);
  const double* const l = losses.data<double>();
  return {l[0], l[1], l[2], l[3]};
}

}  // namespace dsmoe
