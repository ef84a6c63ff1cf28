// Low-rank adapters (Hu et al. 2021): W = W0 + alpha / R · B · A for the matrices of attention and of the experts, with A
// [R, in] and B [out, R] trained and W0 kept. The model always holds the merged W, so running and saving it need no change;
// the gradients of A and B come from that of W by the chain rule.
#pragma once

#include <string>
#include <vector>

#include "dsmoe/context.h"
#include "model/weights.h"
#include "ops/adamw.h"

namespace dsmoe::train {

struct Adapter {
  Parameter parameter;
  Tensor base;    // W0, in the model's dtype
  Tensor a, b;    // f32
  Tensor da, db;  // f32
};

class Lora {
 public:
  Lora() = default;
  // A is uniform in ±1/sqrt(in) by seed, B zero: the model is unchanged at first.
  Lora(const ModelConfig& config, ModelWeights& weights, Index rank, double alpha, std::uint64_t seed);

  bool empty() const { return adapters_.empty(); }
  std::vector<Adapter>& adapters() { return adapters_; }

  void gradients(Context& ctx, ModelGradients& grads);    // from that of W to da and db
  void merge(Context& ctx, ModelWeights& weights) const;  // writes W

 private:
  float scale_ = 0;
  std::vector<Adapter> adapters_;
};

}  // namespace dsmoe::train
