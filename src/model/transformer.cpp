#include "model/transformer.h"

#include <algorithm>
#include <mutex>

#include "core/fail.h"
#include "model/gguf_config.h"
#include "model/gguf_weights.h"
#include "ops/cross_entropy.h"
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
    : config_(new ModelConfig(std::move(config))), weights_(new ModelWeights(std::move(weights))),
      dtype_(activation_dtype(*weights_)), rope_(new RopeCache) {
  config_->validate();
  for (Index l = 0; l < config_->num_hidden_layers; ++l)
    blocks_.emplace_back(*config_, weights_->layers[static_cast<std::size_t>(l)], l, dtype_);
}

Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;

Transformer Transformer::load(const std::filesystem::path& folder, std::optional<DType> dtype) {
  if (io::GgufFile::is_gguf(folder)) {
    const io::GgufFile file = io::GgufFile::open(folder);
    ModelConfig config = config_from_gguf(file);
    ModelWeights weights = load_gguf_weights(file, config, dtype);
    return Transformer(std::move(config), std::move(weights));
  }
  ModelConfig config = ModelConfig::load(folder);
  ModelWeights weights = load_weights(folder, config, dtype ? *dtype : natural_dtype(folder));
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
                            const RoutingProbe& probe) const {
  const auto tokens = static_cast<Index>(ids.size());
  require(tokens > 0, "no tokens to run");
  require(last >= 0 && last <= tokens, "logits of {} tokens asked for, {} given", last, tokens);
  require(cache.length + tokens <= cache.capacity,
          "{} tokens do not fit the context of {} that has {} in it; use a larger context (-c)", tokens, cache.capacity,
          cache.length);
  const ModelConfig& c = *config_;
  const std::shared_ptr<const ops::RopeTable> table = rope(cache.length + tokens);
  Tensor x(DType::kF32, {tokens, c.hidden_size});
  ops::embedding(ctx, weights_->embedding, ids, x);
  for (const Block& block : blocks_) block.forward(ctx, *table, x, cache, probe);
  cache.length += tokens;

  Tensor h(dtype(), {last, c.hidden_size}), logits(DType::kF32, {last, c.vocab_size});
  ops::rms_norm(ctx, x.rows(tokens - last, tokens), weights_->final_norm, static_cast<float>(c.rms_norm_eps), h);
  ops::linear(ctx, h, weights_->head, logits);
  return logits;
}

LossResult Transformer::loss_and_gradients(Context& ctx, std::span<const std::int32_t> ids,
                                           std::span<const std::int32_t> targets, Index sequence_length, float loss_scale,
                                           float aux_scale, ModelGradients& grads) const {
  require(trainable(*weights_), "quantized weights cannot be trained; load the model in f32 or bf16");
  const ModelConfig& c = *config_;
  const auto tokens = static_cast<Index>(ids.size()), model = c.hidden_size;
  require(sequence_length > 0 && tokens % sequence_length == 0 && targets.size() == ids.size(),
          "{} tokens with {} targets are no whole sequences of {}", tokens, targets.size(), sequence_length);
  const std::shared_ptr<const ops::RopeTable> table = rope(sequence_length);
  const auto eps = static_cast<float>(c.rms_norm_eps);

  Tensor x(DType::kF32, {tokens, model});
  ops::embedding(ctx, weights_->embedding, ids, x);
  std::vector<BlockSaved> saved(blocks_.size());
  LossResult result;
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    blocks_[l].train(ctx, *table, x, sequence_length, saved[l]);
    result.balance.sequence += saved[l].moe.losses.sequence;
    result.balance.batch += saved[l].moe.losses.batch;
    result.balance.device += saved[l].moe.losses.device;
  }

  Tensor h(dtype(), {tokens, model}), dh(DType::kF32, {tokens, model});
  ops::rms_norm(ctx, x, weights_->final_norm, eps, h);
  for (Index t = 0; t < tokens; t += kHeadTokens) {
    const Index end = std::min(tokens, t + kHeadTokens);
    Tensor logits(DType::kF32, {end - t, c.vocab_size}), dlogits(dtype(), {end - t, c.vocab_size}), dh_rows = dh.rows(t, end);
    ops::linear(ctx, h.rows(t, end), weights_->head, logits);
    const ops::CrossEntropy loss = ops::cross_entropy(
        ctx, logits, targets.subspan(static_cast<std::size_t>(t), static_cast<std::size_t>(end - t)),
        /*token_losses=*/nullptr, &dlogits, loss_scale);
    result.loss_sum += loss.loss_sum;
    result.count += loss.count;
    ops::linear_backward_weight(ctx, dlogits, h.rows(t, end), grads.head);
    ops::linear_backward_input(ctx, dlogits, weights_->head, dh_rows, /*accumulate=*/false);
  }

  Tensor dx = Tensor::zeros(DType::kF32, {tokens, model});
  ops::rms_norm_backward(ctx, dh.to(dtype()), x, weights_->final_norm, eps, dx, grads.final_norm);
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    blocks_[l].backward(ctx, *table, sequence_length, saved[l], dx, grads.layers[l], aux_scale);
    saved[l] = BlockSaved{};
  }
  ops::embedding_backward(ctx, ids, dx, grads.embedding);
  return result;
}

}  // namespace dsmoe
