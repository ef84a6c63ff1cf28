// What a model needs before it exists: parameters, computation and memory, counted from its list of tensors.
#pragma once

#include <string>
#include <vector>

#include "dsmoe/model_config.h"
#include "dsmoe/segmentation.h"

namespace dsmoe {

// Numbers of parameters, in all and for one token. Both embedding tables count as activated, as in the paper.
struct ParameterCount {
  Index total = 0;
  Index activated = 0;  // all but the routed experts that a token does not choose
  Index tensors = 0;
  Index embedding = 0;
  Index attention = 0;
  Index dense_mlp = 0;
  Index routed_experts = 0;
  Index shared_experts = 0;
  Index router = 0;
  Index norm = 0;
  Index head = 0;  // 0 when tied to the embedding

  // The MoE layers alone; every parameter that a token activates in them is one multiply-add.
  Index moe() const { return routed_experts + shared_experts + router; }
  Index moe_activated = 0;
};
ParameterCount count_parameters(const ModelConfig& config);

// Floating-point operations for one token that attends to `context` tokens: two per multiply-add of every matrix
// product (projections, router, experts that run, head, attention scores and their sum). The paper's formula does not
// halve attention for the causal mask, and neither does this; norms, rotary embedding and softmax are left out.
Index forward_flops(const ModelConfig& config, Index context);
// Forward, and backward at twice that: tokens * (6 * weights + 12 L D T), the paper's FLOPs.
Index training_flops(const ModelConfig& config, Index context);

// Bytes. Quantized formats hold blocks of 32 numbers of a row in 34 (q8_0) or 18 (q4_0) bytes; the router and vectors
// stay f32; a matrix whose rows are no multiple of 32, or that is never quantized, stays bf16.
struct InferenceMemory {
  Index weights_f32 = 0;
  Index weights_bf16 = 0;
  Index weights_q8_0 = 0;
  Index weights_q4_0 = 0;
  Index kv_per_token = 0;  // bf16
  Index kv_context = 0;    // of one sequence of `context` tokens
};
InferenceMemory inference_memory(const ModelConfig& config, Index context);

// Bytes of the state that training keeps, without activations, which depend on the batch.
struct TrainingMemory {
  Index weights = 0;
  Index master_weights = 0;  // f32 copies, 0 when the weights are f32
  Index gradients = 0;       // f32
  Index moments = 0;         // AdamW's two, f32

  Index total() const { return weights + master_weights + gradients + moments; }
};
TrainingMemory training_memory(const ModelConfig& config, DType weights);  // f32 or bf16

// One of the architectures (a), (b), (c), and the model with it in place of its own.
struct ArchitecturePlan {
  std::string label;  // "conventional", "fine-grained", "DeepSeekMoE"
  Architecture architecture;
  std::string combinations;
};
std::vector<ArchitecturePlan> compare_architectures(const Segmentation& segmentation);
Architecture architecture_of(const ModelConfig& config);
ModelConfig with_architecture(ModelConfig config, const Architecture& architecture);

// A model in which every layer is a MoE layer of `architecture`. Heads have 128 numbers where that divides
// hidden_size, else there is one; no count depends on it. Without a vocabulary (0) only the MoE counts mean anything.
ModelConfig uniform_model(const Architecture& architecture, Index hidden_size, Index layers, Index vocab_size);

}  // namespace dsmoe
