#include <cmath>
#include <limits>

#include "core/fail.h"
#include "dsmoe/model_config.h"
#include "dsmoe/segmentation.h"
#include "model/families/family.h"

namespace dsmoe {

namespace {

// Bounds of what is taken from a file, far above any model that exists, so that no later product of sizes overflows
// and no list of tensors eats the memory: the longest has 200 MB, with its names. docs/design/limits.md has them all.
constexpr Index kMaxSize = std::numeric_limits<std::int32_t>::max();
constexpr Index kMaxExperts = Segmentation::kMaxExperts;  // of a layer, shared ones too
constexpr Index kMaxTensors = Index{1} << 20;
constexpr Index kMaxParameters = Index{1} << 56;

void check_size(const char* field, Index value, Index least = 1) {
  require(value >= least, "{} is {}; it must be at least {}", field, value, least);
  require(value <= kMaxSize, "{} is {}; the largest supported is {}", field, value, kMaxSize);
}

void check_sizes(const ModelConfig& c) {
  check_size("vocab_size", c.vocab_size);
  check_size("hidden_size", c.hidden_size);
  check_size("intermediate_size", c.intermediate_size);
  check_size("num_hidden_layers", c.num_hidden_layers);
  check_size("max_position_embeddings", c.max_position_embeddings);
  check_size("num_nextn_predict_layers", c.num_nextn_predict_layers, 0);
}

void check_latent_sizes(const ModelConfig& c) {
  check_size("kv_lora_rank", *c.kv_lora_rank);
  check_size("q_lora_rank", c.q_lora_rank.value_or(1));
  check_size("qk_nope_head_dim", c.qk_nope_head_dim);
  check_size("qk_rope_head_dim", c.qk_rope_head_dim);
  check_size("v_head_dim", c.v_head_dim);
  require(c.qk_rope_head_dim % 2 == 0, "qk_rope_head_dim is {}, but rotary embedding turns pairs, so it must be even",
          c.qk_rope_head_dim);
  const __int128 widest = static_cast<__int128>(*c.kv_lora_rank) + c.qk_rope_head_dim + c.qk_nope_head_dim + c.v_head_dim;
  require(
      c.num_attention_heads * widest <= kMaxSize,
      "num_attention_heads {} times kv_lora_rank {} and the sizes of a head is more than the largest supported width {}",
      c.num_attention_heads, *c.kv_lora_rank, kMaxSize);
}

void check_attention(const ModelConfig& c) {
  check_size("num_attention_heads", c.num_attention_heads);
  require(c.attention_dropout >= 0 && c.attention_dropout < 1, "attention_dropout is {}; it must be at least 0 and under 1",
          c.attention_dropout);
  if (c.latent_attention()) return check_latent_sizes(c);
  if (c.explicit_head_dim) {
    check_size("head_dim", *c.explicit_head_dim);
  } else {
    require(c.hidden_size % c.num_attention_heads == 0,
            "num_attention_heads is {}, which does not divide hidden_size {}; change one of them or give head_dim",
            c.num_attention_heads, c.hidden_size);
  }
  require(c.head_dim() % 2 == 0,
          "head_dim is {}, but rotary embedding turns pairs, so it must be even; it is hidden_size / num_attention_heads "
          "unless given",
          c.head_dim());
  require(c.partial_rotary_factor > 0 && c.partial_rotary_factor <= 1,
          "partial_rotary_factor is {}; it must be over 0 and at most 1", c.partial_rotary_factor);
  const Index rotary = c.rotary_width();
  require(rotary >= 2 && rotary % 2 == 0 && rotary <= c.head_dim(),
          "{} is {}, which turns {} of the {} numbers of a head; it must be an even number of them",
          c.rotary_dim ? "rotary_dim" : "partial_rotary_factor",
          c.rotary_dim ? static_cast<double>(*c.rotary_dim) : c.partial_rotary_factor, rotary, c.head_dim());
  const Index kv_heads = c.kv_heads();
  check_size("num_key_value_heads", kv_heads);
  require(kv_heads <= c.num_attention_heads && c.num_attention_heads % kv_heads == 0,
          "num_key_value_heads is {}, which does not divide num_attention_heads {}; null makes them equal, and a file "
          "without the field means 32",
          kv_heads, c.num_attention_heads);
  require(c.num_attention_heads * c.head_dim() <= kMaxSize,
          "num_attention_heads {} times head_dim {} is more than the largest supported width {}", c.num_attention_heads,
          c.head_dim(), kMaxSize);
}

void check_yarn(const RopeScaling& s, double theta) {
  const auto positive = [](const char* field, double value) {
    require(std::isfinite(value) && value > 0, "rope_scaling {} is {}; it must be a number over 0", field, value);
  };
  positive("beta_fast", s.beta_fast);
  positive("beta_slow", s.beta_slow);
  positive("attention_factor", s.attention_factor.value_or(1));
  require(std::isfinite(s.mscale.value_or(0)) && s.mscale.value_or(0) >= 0 && std::isfinite(s.mscale_all_dim.value_or(0)) &&
              s.mscale_all_dim.value_or(0) >= 0,
          "rope_scaling mscale is {} and mscale_all_dim {}; they must be finite and not negative", s.mscale.value_or(0),
          s.mscale_all_dim.value_or(0));
  require(theta > 1, "rope_scaling \"yarn\" needs a rope_theta over 1, found {}", theta);
  if (s.original_max_positions) check_size("rope_scaling original_max_position_embeddings", *s.original_max_positions);
  // In f32, which angles and scores are computed in.
  const auto usable = [](double x) { return std::isnormal(static_cast<float>(x)); };
  require(
      usable(s.angle_factor()) && usable(s.score_factor()) && usable(s.beta_fast) && usable(s.beta_slow),
      "rope_scaling \"yarn\": beta_fast {}, beta_slow {}, the factor {} of angles and {} of scores: f32 does not hold all",
      s.beta_fast, s.beta_slow, s.angle_factor(), s.score_factor());
}

void check_rope(const ModelConfig& c) {
  require(std::isfinite(c.rope_theta) && c.rope_theta > 0, "rope_theta is {}; it must be finite and positive",
          c.rope_theta);
  if (c.rope_scaling.type == RopeScalingType::kNone) return;
  const bool alpha = c.rope_scaling.alpha.has_value();  // then the factor is not used
  require(std::isfinite(c.rope_scaling.factor) && (c.rope_scaling.factor > 1 || (alpha && c.rope_scaling.factor == 1)),
          "rope_scaling factor is {}; it must be a number over 1 (null turns scaling off)", c.rope_scaling.factor);
  require(!alpha || (std::isfinite(*c.rope_scaling.alpha) && *c.rope_scaling.alpha >= 1),
          "rope_scaling alpha is {}; it must be a number of 1 or more", c.rope_scaling.alpha.value_or(1));
  require(c.rope_scaling.type != RopeScalingType::kDynamic || c.rotary_width() > 2,
          "rope_scaling \"dynamic\" needs a head_dim over 2, found {}", c.rotary_width());
  if (alpha)  // in f32, which frequencies are computed in and files carry
    require(c.rope_scaling.base(c.rope_theta, c.rotary_width()) <= std::numeric_limits<float>::max(),
            "rope_scaling alpha is {}, which makes rope_theta {} infinite", *c.rope_scaling.alpha, c.rope_theta);
  if (c.rope_scaling.type == RopeScalingType::kYarn) check_yarn(c.rope_scaling, c.rope_theta);
}

// Equal groups of experts, of which a token may choose from some (n_group, topk_group).
void check_groups(const ModelConfig& c) {
  require(std::isfinite(c.routed_scaling_factor) && c.routed_scaling_factor > 0,
          "routed_scaling_factor is {}; it must be finite and positive, 1 leaves the weights as they are",
          c.routed_scaling_factor);
  require(c.scoring_func == "softmax" || c.router_z_loss_alpha == 0,
          "router_z_loss_alpha is {}, but it is for scoring_func \"softmax\" only", c.router_z_loss_alpha);
  const Index groups = c.expert_groups(), experts = c.routed_experts();
  check_size("n_group", groups);
  if (groups == 1) return;
  require(c.topk_method != "greedy",
          "n_group is {}, but topk_method \"greedy\" chooses from all experts; write n_group 1, or the topk_method "
          "\"group_limited_greedy\" or \"noaux_tc\"",
          groups);
  require(experts % groups == 0, "n_group is {}, which does not divide n_routed_experts {} into equal groups", groups,
          experts);
  require(c.topk_group.has_value(), "topk_group is missing; with n_group {} it must be given", groups);
  check_size("topk_group", *c.topk_group);
  require(*c.topk_group <= groups, "topk_group is {}, more than n_group {}", *c.topk_group, groups);
  require(*c.topk_group * (experts / groups) >= c.experts_per_token(),
          "topk_group {} of n_group {} has {} experts, fewer than num_experts_per_tok {}", *c.topk_group, groups,
          *c.topk_group * (experts / groups), c.experts_per_token());
  require(!c.selection_bias() || experts / groups >= 2,
          "n_group is {}, which leaves groups of {} expert, but topk_method \"noaux_tc\" takes the two best of each",
          groups, experts / groups);
}

void check_moe(const ModelConfig& c) {
  check_size("moe_layer_freq", c.moe_layer_freq);
  check_size("first_k_dense_replace", c.first_k_dense_replace, 0);
  const auto coefficient = [](const char* field, double value) {
    require(std::isfinite(value) && value >= 0,
            "{} is {}; it must be finite and not negative, 0 turns the balance loss off", field, value);
  };
  coefficient("aux_loss_alpha", c.aux_loss_alpha);
  coefficient("device_aux_loss_alpha", c.device_aux_loss_alpha);
  coefficient("router_z_loss_alpha", c.router_z_loss_alpha);
  check_size("aux_loss_devices", c.aux_loss_devices);
  require(c.routed_experts() % c.aux_loss_devices == 0, "aux_loss_devices is {}, which does not divide n_routed_experts {}",
          c.aux_loss_devices, c.routed_experts());
  if (!c.n_routed_experts) return;
  require(*c.n_routed_experts != 0, "n_routed_experts is 0; write null for a model without routed experts");
  check_size("n_routed_experts", c.routed_experts());
  require(c.num_experts_per_tok.has_value(), "num_experts_per_tok is missing; with n_routed_experts {} it must be given",
          c.routed_experts());
  check_size("num_experts_per_tok", c.experts_per_token());
  require(c.experts_per_token() <= c.routed_experts(), "num_experts_per_tok is {}, more than n_routed_experts {}",
          c.experts_per_token(), c.routed_experts());
  check_size("n_shared_experts", c.shared_experts(), 0);
  require(c.routed_experts() + c.shared_experts() <= kMaxExperts,
          "n_routed_experts {} and n_shared_experts {} are together more than the {} experts that a layer may have",
          c.routed_experts(), c.shared_experts(), kMaxExperts);
  check_size("moe_intermediate_size", c.moe_intermediate_size);
  require(c.shared_experts() * c.moe_intermediate_size <= kMaxSize,
          "n_shared_experts {} times moe_intermediate_size {} is more than the largest supported width {}",
          c.shared_experts(), c.moe_intermediate_size, kMaxSize);
  check_groups(c);
}

// Every factor is at most 2^31 here, and the bound on tensors comes first, so 128 bits hold all products.
void check_total(const ModelConfig& c) {
  const __int128 experts = c.routed_experts();
  const __int128 layer_tensors = 18 + 3 * experts;  // at most 11 of attention and norms, 7 of router, shared or dense
  require(c.num_hidden_layers * layer_tensors <= kMaxTensors,
          "num_hidden_layers {} with n_routed_experts {} makes more than {} tensors; reduce one of them",
          c.num_hidden_layers, c.routed_experts(), kMaxTensors);
  const __int128 d = c.hidden_size;
  const __int128 heads = c.num_attention_heads, rank = c.kv_lora_rank.value_or(0), from = c.q_lora_rank.value_or(0);
  const __int128 attention =
      c.latent_attention()
          ? (from + rank + heads * c.v_head_dim) * d +
                heads * ((from > 0 ? from : d) * c.head_dim() + rank * (c.qk_nope_head_dim + c.v_head_dim)) +
                d * c.qk_rope_head_dim
          : 2 * d * (heads + c.kv_heads()) * c.head_dim();
  const __int128 dense = 3 * d * c.intermediate_size;
  const __int128 moe =
      c.n_routed_experts ? 3 * d * c.moe_intermediate_size * (experts + c.shared_experts()) + d * experts : 0;
  require(2 * d * c.vocab_size + c.num_hidden_layers * (attention + dense + moe) <= kMaxParameters,
          "the sizes (vocab_size {}, hidden_size {}, num_hidden_layers {}, n_routed_experts {}, ...) make more than {} "
          "parameters; reduce them",
          c.vocab_size, c.hidden_size, c.num_hidden_layers, c.routed_experts(), kMaxParameters);
}

}  // namespace

void ModelConfig::validate() const {
  family_of(model_type).check(*this);
  check_sizes(*this);
  check_attention(*this);
  check_rope(*this);
  check_moe(*this);
  check_total(*this);
  require(std::isfinite(rms_norm_eps) && rms_norm_eps > 0, "rms_norm_eps is {}; it must be finite and positive",
          rms_norm_eps);
  require(std::isfinite(initializer_range) && initializer_range >= 0,
          "initializer_range is {}; it must be finite and not negative", initializer_range);
  require(!pad_token_id || (*pad_token_id >= 0 && *pad_token_id < vocab_size),
          "pad_token_id is {}, not an id below vocab_size {}; null means none", pad_token_id.value_or(0), vocab_size);
  require(!bos_token_id || *bos_token_id >= 0, "bos_token_id is {}; it cannot be negative, null means none",
          bos_token_id.value_or(0));
  for (const Index id : eos_token_id) require(id >= 0, "eos_token_id is {}; it cannot be negative, null means none", id);
}

Index ModelConfig::moe_layers() const {
  Index count = 0;
  for (Index layer = 0; layer < num_hidden_layers; ++layer) count += is_moe_layer(layer);
  return count;
}

MoeConfig ModelConfig::moe(Index layer) const {
  const ModelSpec spec = spec_of(*this);
  const bool known = layer >= 0 && layer < static_cast<Index>(spec.layers.size());
  const auto* const moe =
      known ? std::get_if<MoeConfig>(&spec.layers[static_cast<std::size_t>(layer)].feed_forward) : nullptr;
  require(moe != nullptr, "layer {} of {} is not a MoE layer", layer, num_hidden_layers);
  moe->validate();
  return *moe;
}

}  // namespace dsmoe
