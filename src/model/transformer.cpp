#include "model/transformer.h"

#include <algorithm>
#include <mutex>

#include "core/fail.h"
#include "model/gguf_config.h"
#include "model/gguf_weights.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"

namespace dsmoe {

namespace {
// The head's logits are made for so many tokens at a time: a vocabulary is wide.
constexpr Index kHeadTokens = 256;

}  // namespace

struct Transformer::RopeCache {
  std::mutex mutex;
  std::shared_ptr<const ops::RopeTable> table;
  Index length = 0;        // that it was made for
  bool by_length = false;  // and holds for that length alone
};

Transformer::Transformer(ModelConfig config, ModelWeights weights)
    : config_(new ModelConfig(std::move(config))),
      weights_(new ModelWeights(std::move(weights))),
      dtype_(activation_dtype(*weights_)),
      rope_(new RopeCache) {
  config_->validate();
  for (Index l = 0; l < config_->num_hidden_layers; ++l)
    blocks_.emplace_back(*config_, weights_->layers[static_cast<std::size_t>(l)], l, dtype_);
}

Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;

Transformer Transformer::load(const std::filesystem::path& folder, std::optional<DType> dtype, const LoadOptions& options) {
  if (io::GgufFile::is_gguf(folder)) {
    io::GgufFile file = io::GgufFile::open(folder);
    ModelConfig config = config_from_gguf(file);
    ModelWeights weights = load_gguf_weights(std::move(file), config, dtype, options);
    return Transformer(std::move(config), std::move(weights));
  }
  ModelConfig config = ModelConfig::load(folder);
  ModelWeights weights = load_weights(folder, config, dtype ? *dtype : natural_dtype(folder), options);
  return Transformer(std::move(config), std::move(weights));
}

std::shared_ptr<const ops::RopeTable> Transformer::rope(Index length) const {
  const ModelConfig& c = *config_;
  const bool by_length = c.rope_scaling.type == RopeScalingType::kDynamic && length > c.max_position_embeddings;
  const std::lock_guard lock(rope_->mutex);
  const auto& known = rope_->table;
  if (!known || (by_length ? rope_->length != length : known->positions() < length || rope_->by_length)) {
    const Index positions = by_length ? length : std::max(length, std::min<Index>(2 * length, c.max_position_embeddings));
    rope_->table = std::make_shared<ops::RopeTable>(
        ops::make_rope_table(c.head_dim(), c.rope_theta, c.rope_scaling, c.max_position_embeddings, positions));
    rope_->length = length;
    rope_->by_length = by_length;
  }
  return rope_->table;
}

Tensor Transformer::forward(Context& ctx, std::span<const std::int32_t> ids, KvCache& cache, Index last,
                            const RoutingProbe& probe, const RoutingOverrides* overrides) const {
  const auto tokens = static_cast<Index>(ids.size());
  require(tokens > 0, "no tokens to run");
  require(last >= 0 && last <= tokens, "logits of {} tokens asked for, {} given", last, tokens);
  require(cache.length + tokens <= cache.capacity,
          "{} tokens do not fit the context of {} that has {} in it; use a larger context (-c)", tokens, cache.capacity,
          cache.length);
  const ModelConfig& c = *config_;
  const std::shared_ptr<const ops::RopeTable> table = rope(cache.length + tokens);
  Tensor x(DType::kF32, {tokens, c.hidden_size});
  ops::embedding(ctx, weights_->embedding, Tensor::view_of(ids), x);
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    const LayerTensors* next = l + 1 < blocks_.size() ? &weights_->layers[l + 1] : nullptr;
    next ? blocks_[l].forward(ctx, *table, x, cache, probe, overrides, {&next->q.weight, &next->k.weight, &next->v.weight})
         : blocks_[l].forward(ctx, *table, x, cache, probe, overrides, {&weights_->head});
  }
  cache.length += tokens;

  Tensor h(dtype(), {last, c.hidden_size}), logits(DType::kF32, {last, c.vocab_size});
  ops::rms_norm(ctx, x.rows(tokens - last, tokens), weights_->final_norm, static_cast<float>(c.rms_norm_eps), h);
  ops::linear(ctx, h, weights_->head, logits);
  return logits;
}

Tensor Transformer::embed(Context& ctx, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                          Index sequence_length) const {
  const auto tokens = static_cast<Index>(ids.size());
  require(sequence_length > 0 && tokens > 0 && tokens % sequence_length == 0 && targets.size() == ids.size(),
          "{} tokens with {} targets are no whole sequences of {}", tokens, targets.size(), sequence_length);
  Tensor x(DType::kF32, {tokens, config_->hidden_size});
  ops::embedding(ctx, weights_->embedding, Tensor::view_of(ids), x);
  return x;
}

namespace {

void add_layer(Context& ctx, LossResult& result, const MoeForward& moe, Index experts) {
  const BalanceLosses losses = fetch_losses(ctx, moe);
  result.balance.sequence += losses.sequence;
  result.balance.batch += losses.batch;
  result.balance.device += losses.device;
  result.balance.router_z += losses.router_z;
  std::vector<std::int64_t>& load = result.load.emplace_back();
  if (!moe.saved) return;
  load.resize(static_cast<std::size_t>(experts));
  for (const std::int32_t e : moe.routing.experts.span<std::int32_t>()) ++load[static_cast<std::size_t>(e)];
}

// fn(logits, first, last) for some tokens after another, logits f32 [last - first, V]; h [T, D] normed.
template <class Fn>
void each_logits(Context& ctx, const Tensor& h, const Tensor& head, Fn fn) {
  for (Index t = 0; t < h.dim(0); t += kHeadTokens) {
    const Index end = std::min(h.dim(0), t + kHeadTokens);
    Tensor logits(DType::kF32, {end - t, head.dim(0)});
    ops::linear(ctx, h.rows(t, end), head, logits);
    fn(logits, t, end);
  }
}

Tensor part(std::span<const std::int32_t> all, Index first, Index last) { return Tensor::view_of(all).rows(first, last); }

void add_loss(Context& ctx, LossResult& result, const Tensor& sum_and_count) {
  const Tensor host = ctx.fetch(sum_and_count);
  result.loss_sum += host.data<double>()[0];
  result.count += static_cast<Index>(host.data<double>()[1]);
}

}  // namespace

LossResult Transformer::loss_and_gradients(Context& ctx, std::span<const std::int32_t> ids,
                                           std::span<const std::int32_t> targets, Index sequence_length, float loss_scale,
                                           float aux_scale, ModelGradients& grads, bool recompute) const {
  require(trainable(*weights_), "quantized weights cannot be trained; load the model in f32 or bf16");
  const ModelConfig& c = *config_;
  Tensor x = embed(ctx, ids, targets, sequence_length);
  const Index tokens = x.dim(0), model = c.hidden_size;
  const std::shared_ptr<const ops::RopeTable> table = rope(sequence_length);
  const auto eps = static_cast<float>(c.rms_norm_eps);

  std::vector<BlockSaved> saved(blocks_.size());
  LossResult result;
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    blocks_[l].train(ctx, *table, x, sequence_length, saved[l]);
    add_layer(ctx, result, saved[l].moe, c.routed_experts());
    if (recompute) saved[l] = BlockSaved{.x_in = saved[l].x_in};
  }

  Tensor h(dtype(), {tokens, model}), dh(DType::kF32, {tokens, model});
  ops::rms_norm(ctx, x, weights_->final_norm, eps, h);
  each_logits(ctx, h, weights_->head, [&](Tensor& logits, Index first, Index last) {
    Tensor dlogits = dtype() == DType::kF32 ? logits : Tensor(dtype(), logits.shape()), dh_rows = dh.rows(first, last);
    add_loss(ctx, result,
             ops::cross_entropy(ctx, logits, part(targets, first, last), /*token_losses=*/nullptr, &dlogits, loss_scale));
    ops::linear_backward_weight(ctx, dlogits, h.rows(first, last), grads.head);
    ops::linear_backward_input(ctx, dlogits, weights_->head, dh_rows, /*accumulate=*/false);
  });

  Tensor dx = Tensor::zeros(DType::kF32, {tokens, model});
  ops::rms_norm_backward(ctx, ops::converted(ctx, dh, dtype()), x, weights_->final_norm, eps, dx, grads.final_norm);
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    if (recompute) {
      Tensor again = saved[l].x_in;  // kept, so it may be written over once the block has its own copy
      blocks_[l].train(ctx, *table, again, sequence_length, saved[l]);
    }
    blocks_[l].backward(ctx, *table, sequence_length, saved[l], dx, grads.layers[l], aux_scale);
    saved[l] = BlockSaved{};
  }
  ops::embedding_backward(ctx, Tensor::view_of(ids), dx, grads.embedding);
  return result;
}

LossResult Transformer::losses(Context& ctx, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                               Index sequence_length, Tensor& token_losses, const LayerProbe& probe) const {
  Tensor x = embed(ctx, ids, targets, sequence_length);
  const std::shared_ptr<const ops::RopeTable> table = rope(sequence_length);
  if (probe) probe(-1, x);
  LossResult result;
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    BlockSaved saved;
    blocks_[l].train(ctx, *table, x, sequence_length, saved);
    add_layer(ctx, result, saved.moe, config_->routed_experts());
    if (probe) probe(static_cast<Index>(l), x);
  }
  Tensor h(dtype(), x.shape());
  ops::rms_norm(ctx, x, weights_->final_norm, static_cast<float>(config_->rms_norm_eps), h);
  each_logits(ctx, h, weights_->head, [&](const Tensor& logits, Index first, Index last) {
    Tensor rows = token_losses.rows(first, last);
    add_loss(ctx, result, ops::cross_entropy(ctx, logits, part(targets, first, last), &rows));
  });
  return result;
}

}  // namespace dsmoe
