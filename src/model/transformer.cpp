#include "model/transformer.h"

#include <algorithm>
#include <utility>

#include "core/caught_error.h"
#include "core/fail.h"
#include "core/later.h"
#include "core/timeline.h"
#include "model/decode_graphs.h"
#include "model/families/family.h"
#include "model/modules.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"

namespace dsmoe {

namespace {

std::unique_ptr<ModelConfig> validated(ModelConfig config) {
  config.validate();
  return std::make_unique<ModelConfig>(std::move(config));
}

}  // namespace

void register_parameters(const ModelSpec& spec, ParameterRegistry& r) {
  r.add("embedding.weight", {spec.vocab, spec.width}, {.group = ParameterGroup::kEmbedding},
        [](ModelTensors& m) -> Tensor& { return m.embedding; });
  for (std::size_t l = 0; l < spec.layers.size(); ++l) {
    r.enter_layer(static_cast<Index>(l));
    register_parameters(spec.layers[l], spec.width, r);
  }
  r.enter_layer(-1);
  r.add("final_norm.weight", {spec.width}, {.group = ParameterGroup::kNorm, .initial = InitialValue::kOnes, .decay = false},
        [](ModelTensors& m) -> Tensor& { return m.final_norm; });
  if (!spec.tied_head)
    r.add("head.weight", {spec.vocab, spec.width}, {.group = ParameterGroup::kHead},
          [](ModelTensors& m) -> Tensor& { return m.head; });
}

// A GPU needs many to be busy: 4096 of 102,400 words are 1.7 GB.
Index head_tokens(Device device, Index vocab) {
  constexpr Index kFewest = 256, kMost = 16384, kNumbers = Index{4096} * 102400;
  if (device == Device::kCpu) return kFewest;
  return std::clamp(kNumbers / vocab / kFewest * kFewest, kFewest, kMost);
}

Transformer::Transformer(ModelConfig config, ModelWeights weights, std::shared_ptr<const parallel::Mesh> mesh)
    : config_(validated(std::move(config))),
      spec_(std::make_unique<ModelSpec>(spec_of(*config_))),
      weights_(std::make_unique<ModelWeights>(std::move(weights))),
      mesh_(std::move(mesh)),
      dtype_(activation_dtype(*spec_, *weights_)),
      kv_dtype_(has_quantized(*spec_, *weights_) ? DType::kBF16 : dtype_),
      trainable_(dsmoe::trainable(*spec_, *weights_)),
      rope_(spec_->rope.head_dim, spec_->rope.theta, spec_->rope.scaling, spec_->rope.max_positions, spec_->rope.rotary) {
  for (std::size_t l = 0; l < spec_->layers.size(); ++l) {
    const Index rotary = rotary_width(spec_->layers[l]);
    require(rotary == rope_.head_dim(), "layer {} turns {} numbers of a head, the model's rotary positions {}", l, rotary,
            rope_.head_dim());
    blocks_.emplace_back(*spec_, weights_->layers[l], static_cast<Index>(l), dtype_, mesh_.get());
  }
}

std::shared_ptr<KvPool> Transformer::make_kv_pool(Index tokens, DType dtype) const {
  require(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kQ8_0,
          "the KV cache cannot be {}; choose f32, bf16 or q8_0", to_string(dtype));
  std::vector<KvLayout> layers;
  for (const LayerSpec& layer : spec_->layers) {
    layers.push_back(kv_layout(layer));
    require(layers.back().head % block_of(dtype).numbers == 0,
            "kv-type {} needs heads of a multiple of {} numbers, this model's have {}; use bf16", to_string(dtype),
            block_of(dtype).numbers, layers.back().head);
  }
  auto pool = std::make_shared<KvPool>(layers, KvPool::pages_for(tokens), dtype, device());
  if (leader_) {
    leader_->new_pool(tokens, dtype);
    pool->on_copy([leader = *leader_](Index from, Index to, Index rows) { leader.copy_page(from, to, rows); });
  }
  return pool;
}

void Transformer::lead_passes() {
  if (mesh_ && !mesh_->alone()) leader_.emplace(mesh_->world);
}

std::optional<Error> Transformer::lost_ranks() const { return leader_ ? leader_->lost() : std::nullopt; }

void Transformer::end_passes() {
  if (leader_) leader_->end();
  leader_.reset();
}

namespace {

// fn(logits, first, last) for some tokens after another, logits f32 [last - first, V]; h [T, D] normed.
template <class Fn>
void each_logits(Context& ctx, const Tensor& h, const Tensor& head, Fn fn) {
  const Index tokens = head_tokens(ctx.device(), head.dim(0));
  for (Index t = 0; t < h.dim(0); t += tokens) {
    const Index end = std::min(h.dim(0), t + tokens);
    Tensor logits = ctx.empty(DType::kF32, {end - t, head.dim(0)});
    ops::linear(ctx, h.rows(t, end), head, logits);
    fn(logits, t, end);
  }
}

}  // namespace

Tensor Transformer::run(Context& ctx, const ForwardBatch& batch, const PassHooks& hooks, ForwardSaved* saved) const {
  require(batch.tokens() > 0, "no tokens to run");
  require(saved == nullptr || batch.pool() == nullptr, "a training pass has no KV cache");
  batch.check();
  if (hooks.overrides) check_overrides(*spec_, *hooks.overrides);
  if (leader_) {
    require(hooks.overrides == nullptr, "routing overrides are for a model that is not spread over ranks");
    leader_->run(batch);
  }
  try {
    return run(ctx, Pass(ctx, batch, rope_, hooks, *weights_), saved);
  } catch (...) {
    if (const Error why = caught_error(); leader_ && why.code() != ErrorCode::kNumeric)
      leader_->lose(why);  // numbers fail on all ranks
    throw;
  }
}

Tensor Transformer::forward(Context& ctx, const ForwardBatch& batch, const PassHooks& hooks, ForwardSaved* saved) const {
  const Tensor x = run(ctx, batch, hooks, saved);
  weights_->check();
  batch.advance();
  return x;
}

Tensor Transformer::run(Context& ctx, const Pass& pass, ForwardSaved* saved) const {
  Tensor x = ctx.empty(DType::kF32, {pass.batch.tokens(), spec_->width});
  Tensor y;  // what the block before adds to x
  wait_for_update(ctx, 0);
  mark(ctx, "embedding");
  ops::embedding(ctx, weights_->embedding, pass.ids, x);
  const PassHooks& hooks = pass.hooks;
  if (hooks.layer) hooks.layer(-1, ctx.fetch(x));
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    BlockSaved block;
    block.keeps_experts = !saved || saved->keep != ForwardSaved::Keep::kNoMoe;
    wait_for_update(ctx, static_cast<Index>(l) + 1);
    blocks_[l].forward(ctx, pass, x, y, saved ? &block : nullptr);
    if (hooks.layer || l + 1 == blocks_.size()) {
      if (saved) x = x.clone();  // the block keeps it as it is
      ops::add(ctx, std::exchange(y, Tensor()), x);
    }
    if (hooks.layer) hooks.layer(static_cast<Index>(l), ctx.fetch(x));
    if (!saved) continue;
    saved->losses.push_back(block.moe.losses);
    saved->offsets.push_back(block.moe.offset);
    if (saved->keep == ForwardSaved::Keep::kInputs)
      saved->blocks.push_back({.x_in = block.x_in});
    else if (saved->keep != ForwardSaved::Keep::kNothing)
      saved->blocks.push_back(std::move(block));
  }
  if (saved) saved->rope = pass.rope;
  wait_for_update(ctx, stages() - 1);
  return x;
}

void Transformer::wait_for_update(Context& ctx, Index stage) const {
  if (!updates_.pending()) return;
  mark(ctx, "waiting for AdamW");
  updates_.wait(ctx, stage);
}

Tensor Transformer::logits(Context& ctx, const ForwardBatch& batch, const PassHooks& hooks) const {
  if (DecodeGraphs::serve(ctx, *this, batch, hooks)) return batch.pool()->graphs().logits(ctx, *this, batch);
  const Tensor logits = head(ctx, batch, run(ctx, batch, hooks, nullptr));
  weights_->check();
  batch.advance();
  return logits;
}

Tensor Transformer::hidden(Context& ctx, const ForwardBatch& batch, const PassHooks& hooks) const {
  const Tensor x = forward(ctx, batch, hooks);
  Tensor h = ctx.empty(dtype(), x.shape());
  ops::rms_norm(ctx, x, weights_->final_norm, static_cast<float>(spec_->norm_eps), h);
  return h;
}

Tensor Transformer::decode(Context& ctx, const ForwardBatch& batch, const ops::Slices& slices, const Tensor& ids) const {
  const PassHooks none;
  return head(ctx, batch, run(ctx, Pass(ctx, batch, slices, ids, rope_, none, *weights_), nullptr));
}

Tensor Transformer::head(Context& ctx, const ForwardBatch& batch, const Tensor& x) const {
  Tensor h = ctx.empty(dtype(), {batch.all_logits(), spec_->width});
  // Rows that are wanted and lie side by side are normed together: a batch that decodes is one piece.
  Index row = 0, first = 0, last = 0;
  const auto norm = [&] {
    Tensor rows = h.rows(row, row + last - first);
    ops::rms_norm(ctx, x.rows(first, last), weights_->final_norm, static_cast<float>(spec_->norm_eps), rows);
    row += last - first;
  };
  for (std::size_t i = 0; i < batch.slices().size(); ++i) {
    const ops::Slice& slice = batch.slices()[i];
    const Index end = slice.first_row + slice.rows, wanted = batch.logits(i);
    if (end - wanted != last) {
      norm();
      first = end - wanted;
    }
    last = end;
  }
  norm();
  Tensor logits = ctx.empty(DType::kF32, {row, spec_->vocab});
  ops::linear(ctx, h, weights_->head, logits);
  return logits;
}

std::vector<Tensor> Transformer::numbers(const ForwardSaved& saved, std::vector<Tensor> sums) const {
  sums.insert(sums.end(), saved.losses.begin(), saved.losses.end());
  sums.insert(sums.end(), saved.offsets.begin(), saved.offsets.end());
  return sums;
}

std::vector<Index> Transformer::routed_experts() const {
  std::vector<Index> routed;
  for (const Block& block : blocks_) routed.push_back(block.routed_experts());
  return routed;
}

namespace {

// From numbers(), in this machine's memory.
LossResult result_of(std::span<const Tensor> numbers, std::size_t parts, std::span<const Index> routed) {
  LossResult r;
  for (std::size_t i = 0; i < parts; ++i) {
    r.loss_sum += numbers[i].data<double>()[0];
    r.count += static_cast<Index>(numbers[i].data<double>()[1]);
  }
  for (std::size_t l = 0; l < routed.size(); ++l) {
    std::vector<std::int64_t>& load = r.load.emplace_back();
    if (numbers[parts + l].numel() == 0) continue;
    const std::span<const double> losses = numbers[parts + l].span<double>();
    r.balance.sequence += losses[0];
    r.balance.batch += losses[1];
    r.balance.device += losses[2];
    r.balance.router_z += losses[3];
    const std::span<const std::int32_t> offset = numbers[parts + routed.size() + l].span<std::int32_t>();
    for (std::size_t e = offset.size() - 1 - static_cast<std::size_t>(routed[l]); e + 1 < offset.size(); ++e)
      load.push_back(offset[e + 1] - offset[e]);
  }
  return r;
}

}  // namespace

LossResult LossLater::get(Context& ctx) { return result_of(numbers_.get(ctx), parts_, routed_); }

LossResult Transformer::loss_and_gradients(Context& ctx, std::span<const std::int32_t> ids,
                                           std::span<const std::int32_t> targets, Index sequence_length, float loss_scale,
                                           float aux_scale, ModelGradients& grads) const {
  LossLater later;
  loss_and_gradients(ctx, ids, targets, sequence_length, {.loss_scale = loss_scale, .aux_scale = aux_scale}, grads, later);
  return later.get(ctx);
}

void Transformer::loss_and_gradients(Context& ctx, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                                     Index sequence_length, const TrainingPass& options, ModelGradients& grads,
                                     LossLater& later) const {
  require(trainable_, "quantized weights cannot be trained; load the model in f32 or bf16");
  require(targets.size() == ids.size(), "{} tokens have {} targets", ids.size(), targets.size());
  ops::check_targets(targets, spec_->vocab);
  const auto eps = static_cast<float>(spec_->norm_eps);
  using Keep = ForwardSaved::Keep;
  const bool again = options.recompute == train::Recompute::kBlock, add_grads = options.add_grads;
  Tensor* const token_losses = options.token_losses;
  const ForwardBatch batch = ForwardBatch::training(ids, sequence_length);
  ForwardSaved saved{.keep = again                                         ? Keep::kInputs
                             : options.recompute == train::Recompute::kMoe ? Keep::kNoMoe
                                                                           : Keep::kAll};
  const Tensor x = forward(ctx, batch, {}, &saved), all_targets = ctx.place(Tensor::view_of(targets));
  std::vector<Tensor> sums;

  mark(ctx, "head and loss, forward and backward");
  Tensor h = ctx.empty(dtype(), x.shape()), dh = ctx.empty(dtype(), x.shape());
  ops::rms_norm(ctx, x, weights_->final_norm, eps, h);
  each_logits(ctx, h, weights_->head, [&](Tensor& logits, Index first, Index last) {
    Tensor dlogits = dtype() == DType::kF32 ? logits : ctx.empty(dtype(), logits.shape()), dh_rows = dh.rows(first, last);
    Tensor losses_rows = token_losses ? token_losses->rows(first, last) : Tensor();
    sums.push_back(ops::cross_entropy(ctx, logits, all_targets.rows(first, last), token_losses ? &losses_rows : nullptr,
                                      &dlogits, options.loss_scale));
    ops::linear_backward_weight(ctx, dlogits, h.rows(first, last), grads.head, add_grads || first > 0);
    const ops::ProjectionGrad product{&dlogits, &weights_->head};
    ops::linear_backward_input(ctx, {&product, 1}, dh_rows);
  });

  if (!add_grads) ctx.fill_zero(grads.final_norm);
  Tensor dx = ctx.zeros(DType::kF32, x.shape());
  Tensor rounded = norm_backward(ctx, dh, x, weights_->final_norm, eps, dtype(), dx, grads.final_norm);
  const auto done = [&](Index stage) {
    if (options.done) options.done(stage);
  };
  done(stages() - 1);
  const PassHooks no_hooks;  // a block that runs again is not heard again
  const Pass pass(ctx, batch, saved.rope, no_hooks, *weights_);
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    BlockSaved block = std::move(saved.blocks[l]);
    saved.blocks.pop_back();
    if (again) {
      Tensor x_in = block.x_in, y;  // kept, so it may be written over once the block has its own copy
      blocks_[l].forward(ctx, pass, x_in, y, &block);
    }
    blocks_[l].backward(ctx, pass, block, dx, rounded, grads.layers[l], add_grads, options.aux_scale);
    done(static_cast<Index>(l) + 1);
  }
  mark(ctx, "embedding");
  if (!add_grads && !spec_->tied_head) ctx.fill_zero(grads.embedding);  // a tied head's gradient is there already
  ops::embedding_backward(ctx, Tensor::view_of(ids), dx, grads.embedding);
  done(0);
  weights_->check();
  mark(ctx, "fetching the losses");
  later.parts_ = sums.size();
  later.routed_ = routed_experts();
  later.numbers_.begin(ctx, numbers(saved, std::move(sums)));
}

LossResult Transformer::losses(Context& ctx, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                               Index sequence_length, Tensor& token_losses, const PassHooks& hooks) const {
  require(targets.size() == ids.size(), "{} tokens have {} targets", ids.size(), targets.size());
  ops::check_targets(targets, spec_->vocab);
  ForwardSaved saved{.keep = ForwardSaved::Keep::kNothing};
  const Tensor x = forward(ctx, ForwardBatch::training(ids, sequence_length), hooks, &saved),
               all_targets = ctx.place(Tensor::view_of(targets));
  std::vector<Tensor> sums;
  Tensor h = ctx.empty(dtype(), x.shape());
  ops::rms_norm(ctx, x, weights_->final_norm, static_cast<float>(spec_->norm_eps), h);
  each_logits(ctx, h, weights_->head, [&](const Tensor& logits, Index first, Index last) {
    Tensor rows = token_losses.rows(first, last);
    sums.push_back(ops::cross_entropy(ctx, logits, all_targets.rows(first, last), &rows));
  });
  weights_->check();
  const std::size_t parts = sums.size();
  return result_of(fetch_together(ctx, numbers(saved, std::move(sums))), parts, routed_experts());
}

}  // namespace dsmoe
