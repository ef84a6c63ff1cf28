// What one DeepSeekMoE layer is. Behaviour is a number or an enum here; no model names.
//
// Glossary, used everywhere: T tokens, D model width, E routed experts, S shared experts,
// K routed experts chosen per token, F expert width.
#pragma once

#include <cstdint>

#include "dsmoe/tensor.h"

namespace dsmoe {

enum class ScoreFunction : std::uint8_t {
  kSoftmax,  // s = softmax over the routed experts
  kSigmoid,  // s_i = sigmoid(logit_i), each expert on its own
};

// The score of a group of experts, for gates that choose from the best groups only.
enum class GroupScore : std::uint8_t {
  kMax,      // its best expert
  kTop2Sum,  // the sum of its two best experts
};

struct MoeConfig {
  Index hidden_size = 0;        // D
  Index expert_size = 0;        // F, of every expert; a shared expert is an expert that all tokens choose
  Index routed_experts = 0;     // E
  Index shared_experts = 0;     // S
  Index experts_per_token = 0;  // K

  ScoreFunction score = ScoreFunction::kSoftmax;
  bool norm_topk_prob = false;         // divide the K chosen scores by (their sum + 1e-20) when K > 1
  float routed_scaling_factor = 1.0f;  // multiplies the chosen weights, after normalisation
  bool selection_bias = false;         // add a bias per expert for choosing; it does not enter the weights
  // Multiply the shared experts' outputs by sigmoid(<x, MoeWeights::shared_gate>): their weight is else 1.
  bool shared_gate = false;

  // Choose only from the best `groups_per_token` of `groups` equal, contiguous groups of experts.
  Index groups = 1;
  Index groups_per_token = 1;
  GroupScore group_score = GroupScore::kMax;

  // Weights of the balance losses; 0 disables one, and it then costs nothing.
  float seq_balance_alpha = 0.0f;     // per sequence, averaged over the sequences
  float batch_balance_alpha = 0.0f;   // over all tokens (the paper's expert-level loss, eq. 12-14)
  float device_balance_alpha = 0.0f;  // over groups of experts (eq. 15-17)
  Index devices = 1;                  // equal, contiguous groups of routed experts for the device-level loss
  // Router z-loss (ST-MoE, eq. 5): the mean over tokens of logsumexp(logits)². Softmax scores only.
  float router_z_alpha = 0.0f;

  int layer_index = -1;  // for error messages; -1: unknown

  Index all_experts() const { return shared_experts + routed_experts; }  // S + E, shared ones first
  Index slots() const { return shared_experts + experts_per_token; }     // experts that run per token
  void validate() const;                                                 // throws Error naming the field and why
};

}  // namespace dsmoe
