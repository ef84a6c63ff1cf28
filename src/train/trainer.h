// A model with what training it needs: gradients, moments, master weights. One call of step() is one update.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/transformer.h"
#include "train/dataset.h"
#include "train/lora.h"
#include "train/options.h"
#include "train/schedule.h"
#include "train/trained_tensors.h"

namespace dsmoe::train {

struct StepResult {
  double loss = 0;        // mean over all targets of the step, of the weights before its update
  BalanceLosses balance;  // mean over the passes
  double grad_norm = 0;   // before clipping
  double rate = 0;        // learning rate
  Index tokens = 0;       // inputs
  // The largest and smallest share of tokens of any expert in any layer, 1 when even; 0 without MoE layers.
  double load_max = 0, load_min = 0;
};

struct Evaluation {
  double loss = 0;  // mean over the targets
  Index tokens = 0;
  std::vector<std::pair<std::string, double>> domains;  // the same, of each domain that has targets
};

class Trainer {
 public:
  // The weights become the trainer's own and are changed in place, in the options' dtype. Throws for what cannot be
  // trained (attention_dropout) and for patterns that match nothing.
  Trainer(Context& ctx, ModelConfig config, ModelWeights weights, const TrainOptions& options);

  // One update from the gradients of all passes together. Loss and gradients are those of one batch that holds them
  // all, as far as the balance losses allow: the one over the batch is taken over each pass.
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
  LrSchedule schedule_;
  Transformer model_;
  ModelGradients grads_;
  Lora lora_;
  TrainedTensors trained_;
  Index step_ = 0;
};

}  // namespace dsmoe::train
