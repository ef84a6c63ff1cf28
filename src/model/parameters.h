// Every tensor of a model, in the order of the reference's state dict: the one list that counting, initialising,
// loading and saving go by.
#pragma once

#include <string>
#include <vector>

#include "dsmoe/model_config.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

enum class ParameterKind : std::uint8_t {
  kEmbedding,  // [V, D]
  kQueryWeight,
  kQueryBias,
  kKeyWeight,
  kKeyBias,
  kValueWeight,
  kValueBias,
  kOutputWeight,
  kOutputBias,
  kRouter,      // [E, D]
  kRouterBias,  // [E] for choosing; always f32, moved by balancing and never by gradients
  kExpertGate,  // [F, D], of one routed expert
  kExpertUp,    // [F, D]
  kExpertDown,  // [D, F]
  kSharedGate,  // [S * F, D]: the shared experts, one after another
  kSharedUp,    // [S * F, D]
  kSharedDown,  // [D, S * F]
  kDenseGate,   // [I, D]
  kDenseUp,     // [I, D]
  kDenseDown,   // [D, I]
  kInputNorm,
  kPostAttentionNorm,
  kFinalNorm,
  kHead,  // [V, D]; absent when tied to the embedding
};

struct Parameter {
  std::string name;  // as in the checkpoint
  Shape shape;
  ParameterKind kind;
  Index layer = -1;   // -1 outside the layers
  Index expert = -1;  // -1 outside the routed experts
};

bool is_norm(ParameterKind kind);
bool is_bias(ParameterKind kind);
bool is_routed_expert(ParameterKind kind);
bool is_shared_expert(ParameterKind kind);
bool is_dense_mlp(ParameterKind kind);
bool is_router(ParameterKind kind);  // weight and bias
bool is_attention(ParameterKind kind);  // weights and biases of the four projections
bool has_gradient(ParameterKind kind);
// What a parameter is kept in, in a model of `dtype`.
DType stored_dtype(ParameterKind kind, DType dtype);

std::vector<Parameter> parameter_list(const ModelConfig& config);  // validates the config first

}  // namespace dsmoe
