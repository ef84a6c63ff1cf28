// The tensors of a model, and their gradients in the same places.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/tensor_view.h"
#include "dsmoe/model_config.h"
#include "dsmoe/moe.h"
#include "dsmoe/tensor.h"
#include "model/latent_weights.h"
#include "model/parameters.h"

namespace dsmoe {

// y = x · weightᵀ + bias; no bias when the tensor is empty.
struct LinearWeights {
  Tensor weight, bias;
};

// The same type holds a layer's weights and, in the same places, its gradients.
struct LayerTensors {
  Tensor input_norm, post_attention_norm;  // [D]
  LinearWeights q, k, v, o;
  // Of latent attention; q takes what q_a and its norm give, if they are there.
  LinearWeights q_a, kv_a;
  LatentWeights kv_b;
  Tensor q_a_norm, kv_a_norm;
  Tensor q_norm, k_norm;   // [head_dim], or one weight per number of a token; empty without such norms
  Tensor gate, gate_bias;  // the router of a MoE layer
  Tensor shared_gate;      // [D]; empty where its shared experts have no gate
  Experts experts;         // S + E of a MoE layer, shared ones first; the one of a dense layer

  // What MoeLayer takes: the same memory.
  MoeWeights moe() const { return {gate, gate_bias, experts, shared_gate}; }
  MoeGradients moe_gradients() const;
};

// Which routed experts of every layer are here, when they are spread over ranks: rank `rank` of `ranks`, as
// parallel::Comm::share() has it.
struct ExpertShare {
  int rank = 0, ranks = 1;
  Index first(Index routed) const { return routed * rank / ranks; }
  Index last(Index routed) const { return routed * (rank + 1) / ranks; }
  Index count(Index routed) const { return last(routed) - first(routed); }
};

struct ModelTensors {
  Tensor embedding;  // [V, D]
  std::vector<LayerTensors> layers;
  Tensor final_norm;  // [D]
  Tensor head;        // [V, D]; the embedding's own tensor when tied
  // Throws when a file that tensors lie in was truncated or written to: what was computed with them is wrong then. Empty
  // for tensors in memory of their own. See docs/design/mapped-files.md.
  std::function<void()> check_files = {};
  ExpertShare share = {};

  bool holds(const Parameter& parameter) const;  // not the experts of other ranks
  void check() const {                           // at the end of whatever read the tensors
    if (check_files) check_files();
  }
  // The numbers that a name of the list stands for: where they lie, or a copy of what is stored in parts.
  TensorView view(const Parameter& parameter) const;
  // In what they are stored.
  struct Stored {
    DType dtype;
    Index numbers;
    std::size_t bytes() const { return row_bytes(dtype, numbers); }
  };
  std::vector<Stored> stored(const Parameter& parameter) const;
  Tensor dense(const Parameter& parameter) const { return view(parameter).dense(); }
  Tensor fetched(const Parameter& parameter) const { return view(parameter).fetched(); }  // in this machine's memory
};

using ModelWeights = ModelTensors;
using ModelGradients = ModelTensors;

// What is computed in: bf16 when every matrix is, else f32; quantized and f16 matrices take f32 activations, packed ones of
// a GPU bf16.
DType activation_dtype(const ModelSpec& spec, const ModelWeights& weights);
// Whether any matrix is in quantized blocks.
bool has_quantized(const ModelSpec& spec, const ModelWeights& weights);
// Whether all matrices are f32, or all bf16: only such a model can be trained.
bool trainable(const ModelSpec& spec, const ModelWeights& weights);

// Tensors of its own, experts stacked, uninitialised.
ModelWeights empty_weights(const ModelSpec& spec, DType dtype, Device device = Device::kCpu, ExpertShare share = {});
// Tensors where they lie, experts listed: one per parameter, in the order of the list.
ModelWeights listed_weights(const ModelSpec& spec, std::span<const Parameter> parameters, std::vector<Tensor> tensors);
// Where a copy's numbers come from, one parameter after another: a model need not be in this machine's memory for that.
struct ParameterReader {
  std::function<Tensor(const Parameter& parameter)> read;     // as it is stored, in this machine's memory
  std::function<void(const Parameter& parameter)> done = {};  // it is not needed any more
};
// A copy with tensors of its own, experts stacked, in f32 or bf16.
ModelWeights owned_copy(const ModelSpec& spec, const ModelWeights& weights, DType dtype, Device device = Device::kCpu,
                        ExpertShare share = {});
ModelWeights owned_copy(const ModelSpec& spec, std::span<const Parameter> parameters, const ParameterReader& reader,
                        DType dtype, Device device, ExpertShare share = {});
// A copy in GPU memory that keeps quantized matrices packed (ops/pack.h); all else becomes bf16. So do the experts of a
// layer where not all matrices are quantized, or not all routed experts' alike.
ModelWeights packed_copy(const ModelSpec& spec, const ModelWeights& weights, Context& ctx);
ModelWeights packed_copy(const ModelSpec& spec, std::span<const Parameter> parameters, const ParameterReader& reader,
                         Context& ctx);
// All zero, f32. `taking_turns`: of layers that are alike every second has the same tensors, for those who are done with a
// layer's gradients when backward is done with the next one's: turns_of() says which layer has them first.
ModelGradients zero_gradients(const ModelSpec& spec, Device device = Device::kCpu, ExpertShare share = {},
                              bool taking_turns = false);
std::vector<std::size_t> turns_of(const ModelSpec& spec);

// The same for a config, which its family makes a spec of.
ModelWeights empty_weights(const ModelConfig& config, DType dtype);
ModelWeights listed_weights(const ModelConfig& config, std::span<const Parameter> parameters, std::vector<Tensor> tensors);
ModelWeights owned_copy(const ModelConfig& config, const ModelWeights& weights, DType dtype, Device device = Device::kCpu,
                        ExpertShare share = {});
ModelGradients zero_gradients(const ModelConfig& config, Device device = Device::kCpu, ExpertShare share = {},
                              bool taking_turns = false);

// One tensor of a freshly initialised model, as its traits say, which is as the reference draws it: router uniform in
// ±1/sqrt(D), norms 1, biases 0, the row of the padding token 0, all else normal with deviation initializer_range.
// Depends on (seed, place in the list) alone.
Tensor initial_tensor(const ModelConfig& config, const Parameter& parameter, std::size_t number, std::uint64_t seed,
                      DType dtype, Context& ctx);
ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed, DType dtype, Context& ctx,
                            ExpertShare share = {});
// For benchmarks: random numbers of the right size, made where the Context runs.
ModelWeights benchmark_weights(const ModelConfig& config, DType dtype, Context& ctx);
// The same with packed matrices of the dtypes that `dtype_of` gives, as a quantized file has them.
ModelWeights benchmark_weights(const ModelConfig& config, const std::function<DType(const Parameter&)>& dtype_of,
                               Context& ctx);

}  // namespace dsmoe
