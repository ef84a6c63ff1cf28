// The language model: token ids in, logits out; and the loss with its gradients. x = embedding(ids), then the
// blocks, a last norm, and the head.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "dsmoe/context.h"
#include "dsmoe/model_config.h"
#include "model/block.h"
#include "model/kv_cache.h"
#include "model/weights.h"

namespace dsmoe {

struct LossResult {
  double loss_sum = 0;                          // of the next-token losses
  Index count = 0;                              // positions that have one
  BalanceLosses balance;                        // summed over the layers
  std::vector<std::vector<std::int64_t>> load;  // [L][E] tokens that chose each expert; empty for a dense layer

  double mean() const { return count > 0 ? loss_sum / static_cast<double>(count) : 0; }
};

// Hears the residual stream [T, D] after each layer, and with -1 before the first.
using LayerProbe = std::function<void(Index layer, const Tensor& x)>;

class Transformer {
 public:
  Transformer(ModelConfig config, ModelWeights weights);
  ~Transformer();
  Transformer(Transformer&&) noexcept;
  // A Hugging Face folder or a GGUF file. Without a dtype, as the weights are stored, quantized ones included.
  static Transformer load(const std::filesystem::path& folder, std::optional<DType> dtype = {},
                          const LoadOptions& options = {.storage = Storage::kAuto});

  const ModelConfig& config() const { return *config_; }
  ModelWeights& weights() { return *weights_; }
  const ModelWeights& weights() const { return *weights_; }
  DType dtype() const { return dtype_; }  // of the activations

  // Appends the tokens to the cache and returns the logits of the last `last` of them, f32 [last, V].
  Tensor forward(Context& ctx, std::span<const std::int32_t> ids, KvCache& cache, Index last = 1,
                 const RoutingProbe& probe = {}, const RoutingOverrides* overrides = nullptr) const;

  // ids and targets hold sequences of `sequence_length` one after another. The gradients are those of
  // loss_scale * sum of the losses + aux_scale * sum of the balance losses, added to grads. With recompute only the
  // input of each block is kept, and backward runs the block again: the same bits for less memory and more time.
  LossResult loss_and_gradients(Context& ctx, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                                Index sequence_length, float loss_scale, float aux_scale, ModelGradients& grads,
                                bool recompute = false) const;

  // The loss alone; token_losses f32 [B * S] holds that of each position, 0 where it has no target.
  LossResult losses(Context& ctx, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                    Index sequence_length, Tensor& token_losses, const LayerProbe& probe = {}) const;

 private:
  Tensor embed(Context& ctx, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
               Index sequence_length) const;
  std::shared_ptr<const ops::RopeTable> rope(Index length) const;

  // Behind pointers, since the blocks refer to them and a Transformer may be moved.
  std::unique_ptr<ModelConfig> config_;
  std::unique_ptr<ModelWeights> weights_;
  DType dtype_;
  std::vector<Block> blocks_;

  // Rotations are the same for every text unless they are scaled by its length: made once, and again when a text
  // is longer than any before.
  struct RopeCache;
  std::unique_ptr<RopeCache> rope_;
};

}  // namespace dsmoe
