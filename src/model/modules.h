// What every module says of itself: one overload per spec, each written in the module's own file, which is the only one
// that knows its parameters. A new module is a spec in spec.h and these functions; the compiler names those that are
// missing. D is the width of the model.
#pragma once

#include <vector>

#include "model/kv_pool.h"
#include "model/parameters.h"
#include "model/spec.h"

namespace dsmoe {

void register_parameters(const GqaSpec& spec, Index width, ParameterRegistry& registry);    // attention.cpp
void register_parameters(const MlaSpec& spec, Index width, ParameterRegistry& registry);    // latent_attention.cpp
void register_parameters(const DenseSpec& spec, Index width, ParameterRegistry& registry);  // mlp.cpp
void register_parameters(const MoeConfig& spec, Index width, ParameterRegistry& registry);  // moe_module.cpp
void register_parameters(const LayerSpec& spec, Index width,
                         ParameterRegistry& registry);                         // block.cpp: both, and the norms
void register_parameters(const ModelSpec& spec, ParameterRegistry& registry);  // transformer.cpp: embedding, layers, head

// What attention keeps of a token.
KvLayout kv_layout(const GqaSpec& spec);
KvLayout kv_layout(const MlaSpec& spec);
KvLayout kv_layout(const LayerSpec& spec);

// Numbers of a head that rotary positions turn.
Index rotary_width(const GqaSpec& spec);
Index rotary_width(const MlaSpec& spec);
Index rotary_width(const LayerSpec& spec);

// The SwiGLU experts of a feed-forward, which are two stacks: `whole` that every token runs (shared ones, or the one of a
// dense layer), then the routed ones.
struct ExpertsShape {
  Index whole = 0, routed = 0, width = 0;
};
ExpertsShape experts_shape(const DenseSpec& spec);
ExpertsShape experts_shape(const MoeConfig& spec);
ExpertsShape experts_shape(const LayerSpec& spec);

// Multiply-adds of the matrix products of one token that attends to `context` tokens. 128 bits: a context has no bound.
__int128 multiply_adds(const GqaSpec& spec, Index width, Index context);
__int128 multiply_adds(const MlaSpec& spec, Index width, Index context);
__int128 multiply_adds(const DenseSpec& spec, Index width, Index context);
__int128 multiply_adds(const MoeConfig& spec, Index width, Index context);
__int128 multiply_adds(const LayerSpec& spec, Index width, Index context);

// Bytes per token of each tensor that forward keeps for backward, with activations of `element` bytes: see BlockSaved.
using KeptBytes = std::vector<Index>;
KeptBytes kept_bytes(const GqaSpec& spec, Index width, Index element);
KeptBytes kept_bytes(const MlaSpec& spec, Index width, Index element);
KeptBytes kept_bytes(const DenseSpec& spec, Index width, Index element);
KeptBytes kept_bytes(const MoeConfig& spec, Index width, Index element);
KeptBytes kept_bytes(const LayerSpec& spec, Index width, Index element);
// Of these, what a MoE layer's backward can compute again by itself (train::Recompute::kMoe); none of other layers.
KeptBytes recomputable_bytes(const LayerSpec& spec, Index width, Index element);

// For feed-forwards: the three matrices of one MLP [rows, D], [rows, D], [D, rows], `experts` side by side or one of
// `experts` routed ones.
struct SwigluRoles {
  std::string_view gate, up, down;
};
void register_swiglu(ParameterRegistry& registry, const SwigluRoles& roles, Index rows, Index width,
                     const ParameterTraits& traits, Index experts, Index expert = -1);  // mlp.cpp

}  // namespace dsmoe
