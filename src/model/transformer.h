// The language model: token ids in, logits out; and the loss with its gradients. x = embedding(ids), then the
// blocks, a last norm, and the head. One forward runs every pass: prompts, decoding, evaluation and training.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "core/later.h"
#include "core/side_stream.h"
#include "dsmoe/context.h"
#include "dsmoe/kv_type.h"
#include "dsmoe/model_config.h"
#include "dsmoe/train_options.h"
#include "model/block.h"
#include "model/followed_passes.h"
#include "model/forward_batch.h"
#include "model/hooks.h"
#include "model/kv_pool.h"
#include "model/spec.h"
#include "model/weights.h"
#include "ops/rope.h"

namespace dsmoe {

struct LossResult {
  double loss_sum = 0;                          // of the next-token losses
  Index count = 0;                              // positions that have one
  BalanceLosses balance;                        // summed over the layers
  std::vector<std::vector<std::int64_t>> load;  // [L][E] tokens that chose each expert; empty for a dense layer

  double mean() const { return count > 0 ? loss_sum / static_cast<double>(count) : 0; }
};

// The same of a pass that may still be under way.
class LossLater {
 public:
  LossResult get(Context& ctx);  // waits for the pass, and throws for a fault that it found

 private:
  friend class Transformer;
  std::size_t parts_ = 0;      // of the tokens: the first tensors are the sums of each
  std::vector<Index> routed_;  // experts of each layer
  LaterTogether numbers_;
};

// What a training pass is to do.
struct TrainingPass {
  float loss_scale = 1, aux_scale = 1;
  train::Recompute recompute = train::Recompute::kNone;
  bool add_grads = true;           // else the gradients are written over, whatever they were
  Tensor* token_losses = nullptr;  // as for losses()
  // Backward is done with a stage: the gradients of its weights are there. The last stage first; see Transformer::update().
  std::function<void(Index stage)> done = {};
};

// What a training pass leaves behind.
struct ForwardSaved {
  enum class Keep {
    kAll,      // what backward needs
    kNoMoe,    // without the activations of MoE layers: backward computes them again
    kInputs,   // the input of each block: backward runs the block again
    kNothing,  // of the blocks: only the losses and the load are wanted
  };
  Keep keep = Keep::kAll;
  ops::RopeAngles rope = {};
  std::vector<BlockSaved> blocks = {};
  // Of each layer, where the work runs; empty tensors for a dense one (MoeForward).
  std::vector<Tensor> losses = {}, offsets = {};
};

// Tokens of which the head's logits are made at a time: a vocabulary is wide.
Index head_tokens(Device device, Index vocab);

class Transformer {
 public:
  // `mesh`: of ranks that compute together; null for a process alone. All of them make the same calls.
  Transformer(ModelConfig config, ModelWeights weights, std::shared_ptr<const parallel::Mesh> mesh = nullptr);

  const ModelConfig& config() const { return *config_; }  // for callers; the model itself is its spec
  const ModelSpec& spec() const { return *spec_; }
  const ops::Rope& rope() const { return rope_; }
  // Of all updates so far: work on the stream of the Context that made them comes after these.
  ModelWeights& weights() { return updates_.wait(), *weights_; }
  const ModelWeights& weights() const { return updates_.wait(), *weights_; }
  DType dtype() const { return dtype_; }  // of the activations
  Device device() const { return weights_->embedding.device(); }
  bool is_spread() const { return mesh_ && mesh_->spreads_experts(); }  // over ranks
  // Whether all matrices are f32, or all bf16: only such a model can be trained.
  bool trainable() const { return trainable_; }

  // What the KV cache is kept in unless the user says otherwise: bf16 for bf16 and for quantized weights, whose own
  // rounding is far larger; else f32. docs/performance.md has the measurements.
  DType kv_dtype(std::optional<KvType> wanted = {}) const { return wanted ? dtype_of(*wanted) : kv_dtype_; }
  // Pages for sequences of so many tokens in all (and to the end of the last page). f32, bf16, or q8_0 for heads of whole
  // blocks.
  std::shared_ptr<KvPool> make_kv_pool(Index tokens, DType dtype) const;

  // For a model that is spread over ranks of which the first alone knows what is to be run (followed_passes.h): from then
  // on the others hear of its KV cache and its passes; and of the end. Nothing for a process alone.
  void lead_passes();
  void end_passes();
  // Why they wait in a pass that failed here alone. Nothing can be run any more: this rank must end, and the others with
  // it.
  std::optional<Error> lost_ranks() const;

  // Runs a batch through the blocks and returns the residual stream after the last, f32 [T, D]. Sequences of a pool are
  // longer afterwards; when a pass fails, they are as they were. This and all that follow end with ModelWeights::check().
  // `saved`: for training, with a batch without a pool.
  Tensor forward(Context& ctx, const ForwardBatch& batch, const PassHooks& hooks = {}, ForwardSaved* saved = nullptr) const;
  // For a captured pass: logits() of a batch whose slices and tokens are where the work runs, without a look at its
  // sequences.
  Tensor decode(Context& ctx, const ForwardBatch& batch, const ops::Slices& slices, const Tensor& ids) const;
  // forward(), then the last norm of all rows: what Hugging Face calls last_hidden_state, [T, D] in dtype().
  Tensor hidden(Context& ctx, const ForwardBatch& batch, const PassHooks& hooks = {}) const;
  // forward(), then the last norm and the head for the rows that the slices ask for: f32 [batch.all_logits(), V].
  Tensor logits(Context& ctx, const ForwardBatch& batch, const PassHooks& hooks = {}) const;

  // ids and targets hold sequences of `sequence_length` one after another. The gradients are those of
  // loss_scale * sum of the losses + aux_scale * sum of the balance losses, added to grads.
  LossResult loss_and_gradients(Context& ctx, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                                Index sequence_length, float loss_scale, float aux_scale, ModelGradients& grads) const;
  // Does not wait; `later` gets the result.
  void loss_and_gradients(Context& ctx, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                          Index sequence_length, const TrainingPass& options, ModelGradients& grads,
                          LossLater& later) const;

  // The loss alone; token_losses f32 (on the CPU f64 too) [B * S], where the work runs, holds that of each position, 0
  // where it has no target.
  LossResult losses(Context& ctx, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                    Index sequence_length, Tensor& token_losses, const PassHooks& hooks = {}) const;

  // Changes the weights beside what the Context is given next, on a GPU. work(stage) launches what changes those of a
  // stage: 0 the embedding, 1 + l layer l, and last the rest; see SideStream. A pass waits for each stage before it uses
  // its weights, and for all of them before backward writes the first gradient; whoever asks for weights() comes after
  // them.
  void update(Context& ctx, const std::function<void(Index stage)>& work) { updates_.run(ctx, stages(), work); }
  Index stages() const { return static_cast<Index>(blocks_.size()) + 2; }
  void finish_updates() const { updates_.wait(); }

 private:
  // Embedding and blocks.
  Tensor run(Context& ctx, const ForwardBatch& batch, const PassHooks& hooks, ForwardSaved* saved) const;
  Tensor run(Context& ctx, const Pass& pass, ForwardSaved* saved) const;
  Tensor head(Context& ctx, const ForwardBatch& batch, const Tensor& x) const;
  // The tensors that a result is made of. `sums`: of cross_entropy(), of some tokens after another.
  std::vector<Tensor> numbers(const ForwardSaved& saved, std::vector<Tensor> sums) const;
  std::vector<Index> routed_experts() const;
  void wait_for_update(Context& ctx, Index stage) const;

  // Behind pointers, since the blocks refer to them and a Transformer may be moved.
  std::unique_ptr<ModelConfig> config_;
  std::unique_ptr<ModelSpec> spec_;
  std::unique_ptr<ModelWeights> weights_;
  std::shared_ptr<const parallel::Mesh> mesh_;
  std::optional<PassLeader> leader_;
  DType dtype_, kv_dtype_;
  bool trainable_;
  ops::Rope rope_;
  std::vector<Block> blocks_;
  SideStream updates_;
};

}  // namespace dsmoe
