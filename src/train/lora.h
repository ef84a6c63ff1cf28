// Low-rank adapters (Hu et al. 2021): W = W0 + alpha / R · B · A for the matrices of attention and of the experts, with A
// [R, in] and B [out, R] trained and W0 kept. The model always holds the merged W, so running and saving it need no change;
// the gradients of A and B come from that of W by the chain rule. All A lie in one tensor, and all B in another.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dsmoe/context.h"
#include "model/weights.h"
#include "train/trained_tensors.h"

namespace dsmoe::train {

struct Adapter {
  Parameter parameter;
  Tensor base;    // W0, in the model's dtype
  Tensor a, b;    // f32, parts of the two tensors
  Tensor da, db;  // f32, likewise
};

class Lora {
 public:
  Lora() = default;
  // For the parameters that `wanted` accepts. A is uniform in ±1/sqrt(in) by seed, B zero: the model is unchanged at first.
  Lora(Context& ctx, const ModelConfig& config, const ModelWeights& weights, Index rank, double alpha, std::uint64_t seed,
       const std::function<bool(const Parameter&)>& wanted);

  bool empty() const { return adapters_.empty(); }
  const std::vector<Adapter>& adapters() const { return adapters_; }
  // "<name>.lora_a" and "<name>.lora_b" of each; `spread`: see TrainedTensors::Entry.
  std::vector<TrainedTensors::Entry> entries(const std::function<bool(const Parameter&)>& spread) const;

  void gradients(Context& ctx, const ModelGradients& grads);    // from that of W to da and db
  void merge(Context& ctx, const ModelWeights& weights) const;  // writes W

 private:
  float scale_ = 0;
  Tensor all_a_, all_b_, all_da_, all_db_;  // [numbers] f32
  std::vector<Adapter> adapters_;
};

}  // namespace dsmoe::train
