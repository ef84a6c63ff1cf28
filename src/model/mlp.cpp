#include "model/mlp.h"

#include <numeric>

#include "moe/weights.h"

namespace dsmoe {

namespace {

struct AllTokens {
  Index offset[2];
  std::vector<std::int32_t> token;
  std::vector<float> weight;

  explicit AllTokens(Index tokens)
      : offset{0, tokens}, token(static_cast<std::size_t>(tokens)), weight(static_cast<std::size_t>(tokens), 1.0f) {
    std::iota(token.begin(), token.end(), 0);
  }
  ops::ExpertRows rows() const { return {offset[1], offset, token, weight}; }
};

ops::ExpertWeights one_expert(const ExpertTensors& w) {
  const Index width = w.gate_proj.dim(0), model = w.gate_proj.dim(1);
  if (is_mixed(w)) {
    ops::ExpertWeights list{.model_width = model, .expert_width = width};
    add_mixed_expert(list, w);
    return list;
  }
  return {.dtype = w.gate_proj.dtype(),
          .model_width = model,
          .expert_width = width,
          .gate = {{w.gate_proj.raw(), model}},
          .up = {{w.up_proj.raw(), model}},
          .down = {{w.down_proj.raw(), width}}};
}

}  // namespace

Tensor mlp_forward(Context& ctx, const ExpertTensors& w, const Tensor& h, ops::ExpertActivations* keep) {
  const AllTokens all(h.dim(0));
  const ops::ExpertWeights expert = one_expert(w);
  Tensor inner(h.dtype(), {h.dim(0), expert.expert_width}), y(h.dtype(), h.shape());
  ops::experts_gate_up(ctx, expert, all.rows(), h, inner, keep);
  ops::experts_down_combine(ctx, expert, all.rows(), inner, y);
  return y;
}

Tensor mlp_backward(Context& ctx, const ExpertTensors& w, const Tensor& h, const Tensor& dy,
                    const ops::ExpertActivations& kept, ExpertTensors& grads) {
  const AllTokens all(h.dim(0));
  const ops::ExpertWeights expert = one_expert(w);
  ops::ExpertGrads list{.gate = {{grads.gate_proj.data<float>(), expert.model_width}},
                        .up = {{grads.up_proj.data<float>(), expert.model_width}},
                        .down = {{grads.down_proj.data<float>(), expert.expert_width}}};
  const ops::ExpertRowGrads d = ops::experts_down_backward(ctx, expert, all.rows(), dy, kept);
  ops::experts_weight_backward(ctx, all.rows(), h, dy, d, list);
  Tensor dh = Tensor::zeros(DType::kF32, h.shape());
  ops::experts_gate_up_backward(ctx, expert, all.rows(), d, dh);
  return dh;
}

}  // namespace dsmoe
