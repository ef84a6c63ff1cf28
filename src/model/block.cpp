#include "model/block.h"

#include <algorithm>
#include <array>

#include "core/threads.h"
#include "model/mlp.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace dsmoe {

namespace {

// So few that a block's time goes into reading its weights; then it pays that threads fetch while they wait.
constexpr Index kFewTokens = 4;

using Memory = std::span<const std::byte>;

Memory memory_of(const Tensor& t) { return {static_cast<const std::byte*>(t.raw()), t.bytes()}; }

void coming_up(Context& ctx, std::initializer_list<Memory> pieces) {
  constexpr std::size_t kMost = 512 << 10;  // of a tensor: waits are short, and a cache is small
  std::array<Memory, ThreadPool::kMaxComing> memory;
  std::size_t n = 0;
  for (const Memory& m : pieces)
    if (n < memory.size()) memory[n++] = m.first(std::min(kMost, m.size()));
  ctx.pool().coming_up(std::span(memory).first(n));
}

void coming_up(Context& ctx, std::initializer_list<const Tensor*> tensors) {
  const auto at = [&](std::size_t i) { return i < tensors.size() ? memory_of(*tensors.begin()[i]) : Memory(); };
  coming_up(ctx, {at(0), at(1), at(2)});
}

// The experts that every token takes: the shared ones, or the one of a dense layer.
void experts_coming_up(Context& ctx, const LayerTensors& w) {
  const Index taken = w.experts.count() - (w.gate.numel() > 0 ? w.gate.dim(0) : 0);
  if (taken == 0) return coming_up(ctx, {memory_of(w.gate)});
  const auto matrices = [&](const ExpertMatrix& m) {
    const Index rows = w.experts.stacked() ? w.experts.width(0) : taken * w.experts.width(0);
    return Memory(static_cast<const std::byte*>(m.data), row_bytes(m.dtype, rows * m.ld));
  };
  coming_up(ctx, {memory_of(w.gate), matrices(w.experts.gate_matrix(0)), matrices(w.experts.up_matrix(0))});
}

}  // namespace

Block::Block(const ModelConfig& config, const LayerTensors& weights, Index layer, DType dtype)
    : config_(config), w_(weights), layer_(layer), dtype_(dtype) {
  if (config.is_moe_layer(layer)) moe_.emplace(config.moe(layer), weights.moe());
}

Tensor Block::norm(Context& ctx, const Tensor& x, const Tensor& weight) const {
  Tensor h(dtype_, x.shape());
  ops::rms_norm(ctx, x, weight, static_cast<float>(config_.rms_norm_eps), h);
  return h;
}

void Block::forward(Context& ctx, const ops::RopeTable& rope, Tensor& x, KvCache& cache, const RoutingProbe& probe,
                    const RoutingOverrides* overrides, std::initializer_list<const Tensor*> then) const {
  const auto layer = static_cast<std::size_t>(layer_);
  const bool few = x.dim(0) <= kFewTokens;
  const Tensor keys = cache.k[layer].rows(0, cache.length), values = cache.v[layer].rows(0, cache.length);
  if (few) coming_up(ctx, {&keys, &values, &w_.o.weight});
  ops::add(ctx, attention_forward(ctx, config_, w_, rope, norm(ctx, x, w_.input_norm), cache, layer), x);
  if (few) experts_coming_up(ctx, w_);
  const Tensor h = norm(ctx, x, w_.post_attention_norm);
  if (moe_) {
    const MoeForward out = moe_->forward(ctx, h, {.overrides = overrides});
    if (probe) probe(layer_, out.routing);
    if (few) coming_up(ctx, then);
    ops::add(ctx, out.y, x);
  } else {
    const Tensor y = mlp_forward(ctx, w_.experts, h, nullptr);
    if (few) coming_up(ctx, then);
    ops::add(ctx, y, x);
  }
}

void Block::train(Context& ctx, const ops::RopeTable& rope, Tensor& x, Index sequence_length, BlockSaved& saved) const {
  saved.x_in = x.clone();
  ops::add(ctx, attention_train(ctx, config_, w_, rope, norm(ctx, x, w_.input_norm), sequence_length, saved.attention), x);
  saved.x_mid = x.clone();
  const Tensor h = norm(ctx, x, w_.post_attention_norm);
  if (moe_) {
    saved.moe = moe_->forward(ctx, h, {.training = true, .sequence_length = sequence_length});
    ops::add(ctx, saved.moe.y, x);
    saved.moe.y = Tensor();
  } else {
    saved.mlp_input = h;
    ops::add(ctx, mlp_forward(ctx, w_.experts, h, &saved.mlp), x);
  }
}

void Block::backward(Context& ctx, const ops::RopeTable& rope, Index sequence_length, const BlockSaved& saved, Tensor& dx,
                     LayerTensors& grads, float aux_scale) const {
  const DType dtype = dtype_;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const Tensor dmlp = ops::converted(ctx, dx, dtype);
  MoeGradients moe_grads;
  moe_grads.gate = grads.gate, moe_grads.experts = grads.experts;
  const Tensor dh = moe_ ? moe_->backward(ctx, dmlp, saved.moe, moe_grads, {.aux_scale = aux_scale})
                         : mlp_backward(ctx, w_.experts, saved.mlp_input, dmlp, saved.mlp, grads.experts);
  ops::rms_norm_backward(ctx, dh, saved.x_mid, w_.post_attention_norm, eps, dx, grads.post_attention_norm);

  // The normed input is recomputed: it is cheap, and need not be kept.
  const Tensor h = norm(ctx, saved.x_in, w_.input_norm);
  const Tensor dattention = attention_backward(ctx, config_, w_, rope, h, sequence_length, saved.attention,
                                               ops::converted(ctx, dx, dtype), grads);
  ops::rms_norm_backward(ctx, ops::converted(ctx, dattention, dtype), saved.x_in, w_.input_norm, eps, dx, grads.input_norm);
}

}  // namespace dsmoe
