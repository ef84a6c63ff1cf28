// What AdamW updates: few large tensors (a layer's experts are two), each with its gradient, moments and, for bf16
// weights, an f32 master copy; and which parameters of a checkpoint they hold. A frozen parameter's part of its tensor is
// left out. Among ranks the gradients are summed first, and with ZeRO each rank has the moments and master copies of its
// share of the numbers only (with ZeRO 2 their gradients too), updates those, and gets the other weights from the others.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_view.h"
#include "dsmoe/context.h"
#include "ops/adamw.h"
#include "parallel/mesh.h"
#include "train/gradient_sums.h"

namespace dsmoe::train {

class TrainedTensors {
 public:
  TrainedTensors() = default;
  // `mesh`: null for a process alone.
  TrainedTensors(std::shared_ptr<const parallel::Mesh> mesh, Sharing sharing)
      : mesh_(std::move(mesh)), sharing_(mesh_ ? sharing : Sharing{}), zero_(sharing_.zero > 0), sums_(sharing_) {}

  struct Entry {
    std::string name;
    TensorView weight, gradient;
    bool decay = true;
    bool in_model = true;  // false: the weight is not a tensor of the model, so checkpoints keep it here
    bool trained = true;   // false: frozen; its gradient is computed and cleared
    bool spread = false;   // other ranks of the expert group have other ones of its kind
    Index stage = 0;       // of the model (Transformer): all entries of a tensor have one
  };
  // Where the weights are. Entries whose weights are parts of one tensor share its moments and, for bf16 weights, its f32
  // master copy.
  void add(Context& ctx, std::vector<Entry> entries);

  bool sharded() const { return zero_; }  // each_state() is a call of all ranks
  bool empty() const { return pieces_.empty(); }
  Index trained_numbers() const;  // of all ranks, when there are any: each counted once
  std::size_t bytes() const;      // of master copies and moments here, and with ZeRO 2 of gradients

  // Among ranks, for each pass: begin_pass(), with whether ZeRO 2 adds to what the passes before have left;
  // gradients_done() of the stages that backward is done with, or of none; and of the last pass, with ZeRO 2 of every pass,
  // sum_gradients().
  void begin_pass(bool adds) { sums_.begin_pass(adds); }
  void gradients_done(Context& ctx, Index stage) { sums_.start(ctx, stage); }
  void sum_gradients(Context& ctx) { sums_.finish(ctx); }
  // Gradients are places that passes take turns with: they say nothing afterwards.
  bool shares_gradients() const { return sharing_.zero == 2; }
  bool sums_early(bool last_pass) const { return mesh_ && (shares_gradients() || (last_pass && sharing_.overlap)); }
  Tensor gradient_square(Context& ctx) const;                // the square of the norm, [1] f64 where the work runs
  void step(Context& ctx, const ops::AdamOptions& options);  // and clears all gradients, if the options say so
  // The tensors of one stage alone, on a GPU: launches and nothing else.
  void step(Context& ctx, const ops::AdamOptions& options, Index stage);

  // fn(name, where its numbers are, whether it is spread) for what a checkpoint keeps of each trained parameter:
  // "master.<name>" unless the model has it, "m.<name>" and "v.<name>". With ZeRO all ranks call it together, and see whole
  // tensors. `changes`: what fn assigns to the numbers is kept.
  using StateVisitor = std::function<void(const std::string& name, const TensorView& view, bool spread)>;
  void each_state(const StateVisitor& fn, bool changes = false) const;
  // The names and shapes alone, all f32.
  void each_name(const std::function<void(const std::string& name, const Shape& shape, bool spread)>& fn) const;
  // What this rank writes of them: some of its numbers, one after another, from number `first` on. Of all ranks together
  // each number once.
  using PartVisitor = std::function<void(const std::string& name, Index first, std::span<const float> numbers)>;
  void each_part(const PartVisitor& fn) const;

 private:
  // Contiguous numbers of a tensor that are trained the same way.
  struct Run {
    Index first, count;
    bool trained, decay, spread;
  };
  // The numbers of one run that are updated here: all of them, or a share.
  struct Slice {
    Run run;
    Index first, count;  // in the tensor
    Index at;            // in master, m and v
  };
  struct Storage {
    Tensor weight;        // the model's
    Tensor master, m, v;  // f32, in the shape of the weight, or the slices one after another
    Tensor gradient;      // ZeRO 2: the slices'
    bool in_model, rounded;
    std::vector<Slice> slices;
  };
  struct State {
    std::string name;
    std::size_t storage;
    TensorView place;  // of the weight, to be looked at on master, m and v
    bool spread;
  };

  std::vector<Run> runs_of(const std::vector<Entry>& entries) const;
  static Tensor part(const Tensor& t, Index first, Index count);
  void add_tensor(Context& ctx, const std::vector<Entry>& entries);
  parallel::Comm& group(bool spread) const { return spread ? *mesh_->data : *mesh_->world; }
  Tensor whole(const Storage& s, const Tensor& slices) const;
  void each_part(const Storage& s, const State& state, const std::string& name, const Tensor& numbers, bool sliced,
                 const PartVisitor& fn) const;
  void keep_slices(const Storage& s, const Tensor& whole, const Tensor& slices) const;

  std::shared_ptr<const parallel::Mesh> mesh_;
  Sharing sharing_;
  bool zero_ = false;
  GradientSums sums_;
  Context* ctx_ = nullptr;  // of add()
  std::vector<Storage> storages_;
  std::vector<State> states_;
  std::vector<ops::AdamTensor> pieces_;  // whole tensors, or the trained parts of one
  std::vector<bool> piece_spread_;
  std::vector<Index> piece_stage_;
  std::vector<Tensor> unused_;  // gradients that AdamW does not clear
};

}  // namespace dsmoe::train
