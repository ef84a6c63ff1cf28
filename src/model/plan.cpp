#include "model/plan.h"

#include <algorithm>
#include <limits>

#include "core/fail.h"
#include "model/families/family.h"
#include "model/modules.h"

namespace dsmoe {

namespace {

using Group = ParameterGroup;

// What counts for each group.
constexpr std::pair<Group, Index ParameterCount::*> kFields[] = {
    {Group::kEmbedding, &ParameterCount::embedding},
    {Group::kAttention, &ParameterCount::attention},
    {Group::kDenseMlp, &ParameterCount::dense_mlp},
    {Group::kRoutedExperts, &ParameterCount::routed_experts},
    {Group::kSharedExperts, &ParameterCount::shared_experts},
    {Group::kRouter, &ParameterCount::router},
    {Group::kNorm, &ParameterCount::norm},
    {Group::kHead, &ParameterCount::head},
};

Index ParameterCount::*field_of(Group group) {
  for (const auto& [g, field] : kFields)
    if (g == group) return field;
  fail(ErrorCode::kInternal, "internal error: no count for group {}", static_cast<int>(group));
}

// The spec of a config that has been checked: sums over it do not overflow.
ModelSpec checked_spec(const ModelConfig& config) {
  config.validate();
  return spec_of(config);
}

// Numbers of parameters are bounded by ModelConfig::validate, products with a context are not.
Index checked(__int128 value, const char* what) {
  require(value <= std::numeric_limits<Index>::max(), "{} does not fit in 63 bits; choose a smaller context", what);
  return static_cast<Index>(value);
}

void check_context(Index context) {
  require(context >= 1 && context <= std::numeric_limits<std::int32_t>::max(),
          "context is {} tokens; it must be between 1 and {}", context, std::numeric_limits<std::int32_t>::max());
}

// Bytes of a matrix in blocks of 32, or of what it stays in.
Index quantized_bytes(const Parameter& p, Index block_bytes) {
  constexpr Index kBlock = 32;
  const Index n = p.shape.numel();
  if (!is_matrix(p)) return 4 * n;
  return p.shape[1] % kBlock == 0 ? n / kBlock * block_bytes : 2 * n;
}

}  // namespace

ParameterCount count_parameters(const ModelConfig& config) {
  ParameterCount count;
  visit_parameters(checked_spec(config), [&](const Parameter& p) {
    const Index n = p.shape.numel();
    ++count.tensors;
    count.total += n;
    count.*field_of(p.traits.group) += n;
    if (!p.traits.activated) return;
    count.activated += n;
    if (p.in(Group::kRoutedExperts) || p.in(Group::kSharedExperts) || p.in(Group::kRouter)) count.moe_activated += n;
  });
  return count;
}

Index forward_flops(const ModelConfig& config, Index context) {
  check_context(context);
  const ModelSpec spec = checked_spec(config);
  __int128 sum = static_cast<__int128>(spec.vocab) * spec.width;  // the head, tied or not
  for (const LayerSpec& layer : spec.layers) sum += multiply_adds(layer, spec.width, context);
  return checked(2 * sum, "the number of FLOPs per token");
}

Index training_flops(const ModelConfig& config, Index context) {
  return checked(static_cast<__int128>(3) * forward_flops(config, context), "the number of training FLOPs per token");
}

InferenceMemory inference_memory(const ModelConfig& config, Index context) {
  check_context(context);
  InferenceMemory memory;
  const ModelSpec spec = checked_spec(config);
  visit_parameters(spec, [&](const Parameter& p) {
    memory.weights_f32 += 4 * p.shape.numel();
    memory.weights_bf16 += 2 * p.shape.numel();
    memory.weights_q8_0 += quantized_bytes(p, 34);
    memory.weights_q4_0 += quantized_bytes(p, 18);
  });
  __int128 per_token = 0;
  for (const LayerSpec& layer : spec.layers) per_token += 2 * (kv_layout(layer).k_width + kv_layout(layer).v_width);
  memory.kv_per_token = checked(per_token, "the KV cache of a token");
  memory.kv_context = checked(per_token * context, "the KV cache");
  return memory;
}

TrainingMemory training_memory(const ModelConfig& config, DType weights) {
  require(weights == DType::kF32 || weights == DType::kBF16, "training keeps weights in f32 or bf16, not {}",
          to_string(weights));
  const Index n = count_parameters(config).total;
  return {n * static_cast<Index>(size_of(weights)), weights == DType::kF32 ? 0 : 4 * n, 4 * n, 8 * n};
}

std::vector<ArchitecturePlan> compare_architectures(const Segmentation& segmentation) {
  std::vector<ArchitecturePlan> plans = {{"conventional", segmentation.conventional(), {}},
                                         {"fine-grained", segmentation.fine_grained(), {}},
                                         {"DeepSeekMoE", segmentation.deepseek_moe(), {}}};
  for (ArchitecturePlan& plan : plans)
    plan.combinations = expert_combinations(plan.architecture.routed, plan.architecture.active);
  return plans;
}

Architecture architecture_of(const ModelConfig& config) {
  return {config.routed_experts(), config.experts_per_token(), config.shared_experts(), config.moe_intermediate_size};
}

ModelConfig with_architecture(ModelConfig config, const Architecture& architecture) {
  config.n_routed_experts = architecture.routed;
  config.num_experts_per_tok = architecture.active;
  config.n_shared_experts = architecture.shared;
  config.moe_intermediate_size = architecture.width;
  if (const auto resized = family_of(config.model_type).resized) resized(config);
  // Groups of experts that these cannot be cut into: no count depends on them.
  const Index groups = config.expert_groups(), each = groups > 0 ? architecture.routed / groups : 0;
  if (groups > 1 && (each * groups != architecture.routed || each * config.topk_group.value_or(1) < architecture.active)) {
    config.n_group = config.topk_group = 1;
    if (!config.selection_bias()) config.topk_method = "greedy";
  }
  return config;
}

ModelConfig uniform_model(const Architecture& architecture, Index hidden_size, Index layers, Index vocab_size) {
  constexpr Index kHeadDim = 128;
  ModelConfig config;
  config.vocab_size = std::max<Index>(1, vocab_size);
  config.hidden_size = hidden_size;
  config.num_hidden_layers = layers;
  if (vocab_size == 0) config.explicit_head_dim = 2;  // a MoE layer may have any width, attention has not
  config.num_attention_heads = hidden_size % kHeadDim == 0 && hidden_size > 0 ? hidden_size / kHeadDim : 1;
  config.num_key_value_heads.reset();
  return with_architecture(std::move(config), architecture);
}

}  // namespace dsmoe
