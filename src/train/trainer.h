// A model with its gradients, moments and master weights. One call of step() is one optimizer step.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dsmoe/trainer.h"
#include "model/transformer.h"
#include "train/dataset.h"
#include "train/lora.h"
#include "train/options.h"
#include "train/ranks.h"
#include "train/schedule.h"
#include "train/trained_tensors.h"

namespace dsmoe::train {

class Trainer {
 public:
  // The weights are copied to where the Context runs, in the options' dtype, and changed there. Throws for what cannot be
  // trained (attention_dropout) and for patterns that match nothing. `mesh` (null for a process alone): of ranks that train
  // together. All of them make the same calls, each with its own sequences of the batch, in the order of the ranks; results
  // are those of the whole batch. `zero`: as TrainedTensors has it.
  Trainer(Context& ctx, ModelConfig config, ModelWeights weights, const TrainOptions& options,
          std::shared_ptr<const parallel::Mesh> mesh = nullptr, bool zero = false);

  // One update from the accumulated gradients of all passes. Loss and gradients equal those of one large batch, except for
  // the balance loss over the batch, which is computed per pass.
  // A loss or gradient that is not finite gives an Error with the step and the first layer that shows it.
  StepResult step(std::span<const Batch> passes);

  Evaluation evaluate(const Dataset& data, Index sequences) const;
  // The ranks that train together; null for a process alone.
  parallel::Comm* world() const { return mesh_ ? mesh_->world.get() : nullptr; }

  const Transformer& model() const { return model_; }
  Transformer& model() { return model_; }
  Index steps_done() const { return step_; }
  Index trained_parameters() const;
  std::size_t state_bytes() const;  // of weights, master weights, gradients and moments

  // The model as a Hugging Face folder, and in trainer/ what resuming needs besides: load_state() takes it back into
  // a trainer made from that folder with the same options. Rank 0 writes, with what the others send it; a checkpoint does
  // not know how many ranks there were.
  void save(const std::filesystem::path& folder) const;
  void load_state(const std::filesystem::path& folder);

 private:
  std::pair<double, std::vector<float>> losses_of(const Dataset& data, const Batch& batch, Index first) const;
  StepSums run_passes(std::span<const Batch> passes);
  void write_state(const std::filesystem::path& folder) const;
  double finish_gradients(std::span<const Batch> passes);
  void update_selection_bias(const std::vector<std::vector<std::int64_t>>& load);
  [[noreturn]] void fail_not_finite(std::span<const Batch> passes, const std::string& what);
  void each_state(const TrainedTensors::StateVisitor& visit, bool changes = false) const;
  bool is_spread(const Parameter& p) const { return mesh_ && mesh_->spreads_experts() && p.expert >= 0; }

  Context& ctx_;
  TrainOptions options_;
  std::shared_ptr<const parallel::Mesh> mesh_;
  // The first pass of a step overwrites the gradients, which saves a GPU reading and clearing 4 bytes a parameter each. The
  // CPU's AdamW clears them as it goes.
  bool overwrites_;
  LrSchedule schedule_;
  Transformer model_;
  ModelGradients grads_;
  Lora lora_;
  TrainedTensors trained_;
  Index trained_parameters_ = 0;
  Index step_ = 0;
};

}  // namespace dsmoe::train
