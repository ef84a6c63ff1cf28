// A model with its gradients, moments and master weights. One call of step() is one optimizer step.
#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dsmoe/trainer.h"
#include "io/file_place.h"
#include "io/safetensors_writer.h"
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
  // are those of the whole batch, in every way of sharing.
  Trainer(Context& ctx, ModelConfig config, ModelWeights weights, const TrainOptions& options,
          std::shared_ptr<const parallel::Mesh> mesh = nullptr, Sharing sharing = {});
  ~Trainer();  // after all updates

  // One update from the accumulated gradients of all passes. Loss and gradients equal those of one large batch, except for
  // the balance loss over the batch, which is computed per pass.
  // A loss or gradient that is not finite gives an Error with the step and the first layer that shows it.
  StepResult step(std::span<const Batch> passes);

  // The same in two halves. On a GPU launch() waits for nothing, and finish() waits for the oldest step that was launched,
  // so that a step can be launched before the one ahead is finished. A step that is not finite changes no weight, nor does
  // any after it: finish() throws, those after it are gone, and steps_done() is as it was before the first of them.
  void launch(std::span<const Batch> passes);
  StepResult finish();
  Index launched() const { return static_cast<Index>(flights_.size()); }  // and not finished
  // Whether launch() returns before the step is done. Not on a CPU, nor where a step changes more than AdamW's tensors.
  bool runs_ahead() const { return runs_ahead_; }

  Evaluation evaluate(const Dataset& data, Index sequences) const;
  // The ranks that train together; null for a process alone.
  parallel::Comm* world() const { return mesh_ ? mesh_->world.get() : nullptr; }

  const Transformer& model() const { return model_; }
  Transformer& model() { return model_; }
  Index steps_done() const { return step_; }  // those that are launched too
  Index trained_parameters() const;
  std::size_t state_bytes() const;  // of weights, master weights, gradients and moments

  // The model as a Hugging Face folder, and in trainer/ what resuming needs besides: load_state() takes it back into
  // a trainer made from that folder with the same options. Rank 0 makes the files, and all write their parts of them; a
  // checkpoint does not know how many ranks there were. When one of them cannot write its
  // part, all throw, with its number; what rank 0 alone does may fail on rank 0 alone, which must then end the others.
  void save(const std::filesystem::path& folder) const;
  void load_state(const std::filesystem::path& folder);

 private:
  // A step between launch() and finish().
  struct Flight {
    Index step = 0;
    std::vector<Batch> passes = {};
    StepSums sums = {};
    std::vector<LossLater> losses = {};  // of each pass; kept for later steps, with their memory
    Later square = {};                   // of the gradients' norm
    StepResult result = {};
    bool settled = false;
  };

  std::pair<double, std::vector<float>> losses_of(const Dataset& data, const Batch& batch, Index first) const;
  std::pair<double, std::vector<double>> sum_of_all(const Tensor& losses, Index count) const;
  std::unique_ptr<Flight> flight_of(std::span<const Batch> passes);
  void launch_passes(Flight& flight);
  void settle_losses(Flight& flight);
  void settle_norm(Flight& flight);
  void update(const StepResult& result);
  void write_state(const std::filesystem::path& folder) const;
  void save_together(const std::filesystem::path& folder) const;
  void write_weights_here(const std::vector<io::FilePlace>& places, io::PlaceWriter& writer) const;
  void write_state_here(const std::vector<std::string>& names, const std::vector<io::FilePlace>& places,
                        io::PlaceWriter& writer) const;
  std::vector<io::TensorSpec> state_specs() const;
  void update_selection_bias(const std::vector<std::vector<std::int64_t>>& load);
  [[noreturn]] void fail_not_finite(std::unique_ptr<Flight> flight, const std::string& what);
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
  TrainedTensors trained_;
  ModelGradients grads_;
  Lora lora_;
  Index trained_parameters_ = 0;
  Index step_ = 0;
  bool runs_ahead_;
  Tensor scale_;  // of ops::clip_scale()
  StepWait wait_;
  std::deque<std::unique_ptr<Flight>> flights_;
  std::unique_ptr<Flight> landed_;  // for the next launch
};

}  // namespace dsmoe::train
