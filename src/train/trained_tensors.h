// What AdamW updates: few large tensors (a layer's experts are two), each with its gradient, moments and, for bf16
// weights, an f32 master copy; and which parameters of a checkpoint they hold. A frozen parameter's part of its tensor is
// left out.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tensor_view.h"
#include "dsmoe/context.h"
#include "ops/adamw.h"

namespace dsmoe::train {

class TrainedTensors {
 public:
  struct Entry {
    std::string name;
    TensorView weight, gradient;
    bool decay = true;
    bool in_model = true;  // false: the weight is not a tensor of the model, so checkpoints keep it here
    bool trained = true;   // false: frozen; its gradient is computed and cleared
  };
  // Where the weights are. Entries whose weights are parts of one tensor share its moments and, for bf16 weights, its f32
  // master copy.
  void add(Context& ctx, std::vector<Entry> entries);

  bool empty() const { return pieces_.empty(); }
  Index trained_numbers() const;
  std::size_t bytes() const;  // of master copies and moments

  double gradient_norm(Context& ctx) const;
  void step(Context& ctx, const ops::AdamOptions& options);  // and clears all gradients, if the options say so

  // fn(name, where its numbers are) for what a checkpoint keeps of each trained parameter: "master.<name>" unless the model
  // has it, "m.<name>" and "v.<name>".
  void each_state(const std::function<void(const std::string& name, const TensorView& view)>& fn) const;

 private:
  struct Storage {
    Tensor master, m, v;  // f32, in the shape of the weight
    bool in_model;
  };
  struct State {
    std::string name;
    std::size_t storage;
    TensorView place;  // of the weight, to be looked at on master, m and v
  };

  void add_tensor(Context& ctx, const std::vector<Entry>& entries);

  std::vector<Storage> storages_;
  std::vector<State> states_;
  std::vector<ops::AdamTensor> pieces_;  // whole tensors, or the trained parts of one
  std::vector<Tensor> unused_;           // gradients of frozen parameters
};

}  // namespace dsmoe::train
