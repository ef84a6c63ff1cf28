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
#include "train/schedule.h"
#include "train/trained_tensors.h"

namespace dsmoe::train {

class Trainer {
 public:
  // The weights are copied to where the Context runs, in the options' dtype, and changed there. Throws for what cannot be
  // trained (attention_dropout) and for patterns that match nothing.
  Trainer(Context& ctx, ModelConfig config, ModelWeights weights, const TrainOptions& options);

  // One update from the accumulated gradients of all passes. Loss and gradients equal those of one large batch, except for
  // the balance loss over the batch, which is computed per pass.
  // A loss or gradient that is not finite gives an Error with the step and the first layer that shows it.
  StepResult step(std::span<const Batch> passes);

  Evaluation evaluate(const Dataset& data, Index sequences) const;

  const Transformer& model() const { return model_; }
  Transformer& model() { return model_; }
  Index steps_done() const { return step_; }
  Index trained_parameters() const;
  std::size_t state_bytes() const;  // of weights, master weights, gradients and moments

  // The model as a Hugging Face folder, and in trainer/ what resuming needs besides: load_state() takes it back into
  // a trainer made from that folder with the same options.
  void save(const std::filesystem::path& folder) const;
  void load_state(const std::filesystem::path& folder);

 private:
  double finish_gradients(std::span<const Batch> passes);
  void update_selection_bias(const std::vector<std::vector<std::int64_t>>& load);
  [[noreturn]] void fail_not_finite(std::span<const Batch> passes, const std::string& what);
  void each_state(const std::function<void(const std::string& name, const TensorView& view)>& visit) const;

  Context& ctx_;
  TrainOptions options_;
  // The first pass of a step overwrites the gradients, which saves a GPU reading and clearing 4 bytes a parameter each. The
  // CPU's AdamW clears them as it goes.
  bool overwrites_;
  LrSchedule schedule_;
  Transformer model_;
  ModelGradients grads_;
  Lora lora_;
  TrainedTensors trained_;
  Index step_ = 0;
};

}  // namespace dsmoe::train
