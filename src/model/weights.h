// The tensors of a model, and their gradients in the same places.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "core/tensor_view.h"
#include "dsmoe/model_config.h"
#include "dsmoe/moe.h"
#include "dsmoe/tensor.h"
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
  Tensor gate, gate_bias;  // the router of a MoE layer
  Experts experts;         // S + E of a MoE layer, shared ones first; the one of a dense layer

  MoeWeights moe() const { return {gate, gate_bias, experts}; }  // the same memory
};

struct ModelTensors {
  Tensor embedding;  // [V, D]
  std::vector<LayerTensors> layers;
  Tensor final_norm;  // [D]
  Tensor head;        // [V, D]; the embedding's own tensor when tied

  TensorView view(const Parameter& parameter) const;  // the numbers that a name of the list stands for
  Tensor dense(const Parameter& parameter) const { return view(parameter).dense(); }
};

using ModelWeights = ModelTensors;
using ModelGradients = ModelTensors;

// What is computed in: bf16 when every matrix is, else f32; quantized and f16 matrices take f32 activations.
DType activation_dtype(const ModelWeights& weights);
// Whether all matrices are f32, or all bf16: only such a model can be trained.
bool trainable(const ModelWeights& weights);

// Tensors of its own, experts stacked, uninitialised.
ModelWeights empty_weights(const ModelConfig& config, DType dtype);
// Tensors where they lie, experts listed: one per parameter, in the order of the list.
ModelWeights listed_weights(const ModelConfig& config, std::span<const Parameter> parameters, std::vector<Tensor> tensors);
// A copy with tensors of its own, experts stacked, in f32 or bf16.
ModelWeights owned_copy(const ModelConfig& config, const ModelWeights& weights, DType dtype);
// All zero, f32.
ModelGradients zero_gradients(const ModelConfig& config);

// Where weights are that are used as they are stored.
enum class Storage : std::uint8_t {
  kMapped,  // in the mapped file: nothing to wait for, and processes share it
  kMemory,  // in memory of their own, read at once: the fastest to compute with (MappedFile::in_memory)
  kAuto,    // kMemory where there is room for it, else kMapped
};
using ByteProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;
struct LoadOptions {
  Storage storage = Storage::kMapped;
  ByteProgress progress = {};  // of reading into memory
};
// Whether a file of so many bytes is to be read into memory.
bool read_into_memory(Storage storage, std::uint64_t bytes);

// From a Hugging Face folder, one safetensors file, or a GGUF file. Tensors that already have the wanted dtype stay where
// the options say; others are converted (load_gguf_weights leaves quantized ones as they are). Missing, unexpected,
// misshaped and mistyped tensors are refused by name.
ModelWeights load_weights(const std::filesystem::path& path, const ModelConfig& config, DType dtype,
                          const LoadOptions& options = {});
// The dtype in which a checkpoint is best computed with: its own if f32 or bf16, and bf16 for f16 (the same memory).
// For a GGUF file, bf16 if it is stored so, else f32.
DType natural_dtype(const std::filesystem::path& path);

// One tensor of a freshly initialised model, as the reference draws it: router uniform in ±1/sqrt(D), norms 1, biases
// 0, the row of the padding token 0, all else normal with deviation initializer_range. Depends on (seed, place in
// the list) alone.
Tensor initial_tensor(const ModelConfig& config, const Parameter& parameter, std::size_t number, std::uint64_t seed,
                      DType dtype, Context& ctx);
ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed, DType dtype, Context& ctx);

// Writes a model's folder: config.json and the weights, shard by shard. `tensor` gives one parameter at a time, so
// a model need never be in memory as a whole; `progress` (may be empty) hears of bytes written so far and in all.
using TensorSource = std::function<Tensor(const Parameter& parameter, std::size_t number)>;
void save_model(const std::filesystem::path& folder, const ModelConfig& config, DType dtype, const TensorSource& tensor,
                std::uint64_t max_shard_bytes, const ByteProgress& progress = {});

}  // namespace dsmoe
