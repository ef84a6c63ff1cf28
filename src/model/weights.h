// The tensors of a model, and their gradients in the same places.
#pragma once

#include <cstdint>
#include <vector>

#include "dsmoe/model_config.h"
#include "dsmoe/moe.h"
#include "dsmoe/tensor.h"
#include "model/parameters.h"

namespace dsmoe {

// y = x · weightᵀ + bias; no bias when the tensor is empty.
struct LinearWeights {
  Tensor weight, bias;
};

// Moe is MoeWeights for a model and MoeGradients for its gradients.
template <class Moe>
struct LayerTensors {
  Tensor input_norm, post_attention_norm;  // [D]
  LinearWeights q, k, v, o;
  ExpertTensors mlp;  // dense layers
  Moe moe;            // MoE layers
};

template <class Moe>
struct ModelTensors {
  Tensor embedding;  // [V, D]
  std::vector<LayerTensors<Moe>> layers;
  Tensor final_norm;  // [D]
  Tensor head;        // [V, D]; the embedding's own tensor when tied

  Tensor& at(const Parameter& parameter);  // where a tensor of the list belongs
};

using ModelWeights = ModelTensors<MoeWeights>;
using ModelGradients = ModelTensors<MoeGradients>;

extern template struct ModelTensors<MoeWeights>;
extern template struct ModelTensors<MoeGradients>;

// What is computed in: bf16 when every matrix is, else f32; quantized and f16 matrices take f32 activations.
DType activation_dtype(const ModelWeights& weights);
// Whether all matrices are f32, or all bf16: only such a model can be trained.
bool trainable(const ModelWeights& weights);

// Makes room for a config's layers and experts; every tensor is empty.
ModelWeights empty_weights(const ModelConfig& config);
// All zero, f32.
ModelGradients zero_gradients(const ModelConfig& config);

// One tensor of a freshly initialised model, as the reference draws it: router uniform in ±1/sqrt(D), norms 1, biases
// 0, the row of the padding token 0, all else normal with deviation initializer_range. Depends on (seed, place in
// the list) alone.
Tensor initial_tensor(const ModelConfig& config, const Parameter& parameter, std::size_t number, std::uint64_t seed,
                      DType dtype, Context& ctx);
ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed, DType dtype, Context& ctx);

}  // namespace dsmoe
