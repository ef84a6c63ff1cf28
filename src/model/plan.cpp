#include "model/plan.h"

#include <algorithm>
#include <limits>

#include "core/fail.h"
#include "model/parameters.h"

namespace dsmoe {

namespace {

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
  if (p.shape.rank() < 2 || p.kind == ParameterKind::kRouter) return 4 * n;
  return p.shape[1] % kBlock == 0 ? n / kBlock * block_bytes : 2 * n;
}

}  // namespace

ParameterCount count_parameters(const ModelConfig& config) {
  ParameterCount count;
  for (const Parameter& p : parameter_list(config)) {
    const Index n = p.shape.numel();
    ++count.tensors;
    count.total += n;
    const bool runs = p.expert < config.experts_per_token();  // which K run does not matter: all are alike
    const bool moe = is_routed_expert(p.kind) || is_shared_expert(p.kind) || is_router(p.kind);
    if (runs) count.activated += n;
    if (runs && moe) count.moe_activated += n;
    if (p.kind == ParameterKind::kEmbedding) count.embedding += n;
    if (is_attention(p.kind)) count.attention += n;
    if (is_dense_mlp(p.kind)) count.dense_mlp += n;
    if (is_routed_expert(p.kind)) count.routed_experts += n;
    if (is_shared_expert(p.kind)) count.shared_experts += n;
    if (is_router(p.kind)) count.router += n;
    if (is_norm(p.kind)) count.norm += n;
    if (p.kind == ParameterKind::kHead) count.head += n;
  }
  return count;
}

Index forward_flops(const ModelConfig& config, Index context) {
  check_context(context);
  Index multiply_adds = config.vocab_size * config.hidden_size;  // the head, tied or not
  for (const Parameter& p : parameter_list(config)) {
    const bool product = p.shape.rank() == 2 && p.kind != ParameterKind::kEmbedding && p.kind != ParameterKind::kHead;
    if (product && p.expert < config.experts_per_token()) multiply_adds += p.shape.numel();
  }
  const __int128 attention = static_cast<__int128>(2) * config.num_hidden_layers * config.num_attention_heads *
                             config.head_dim() * context;  // scores, and the sum of values
  return checked(2 * (multiply_adds + attention), "the number of FLOPs per token");
}

Index training_flops(const ModelConfig& config, Index context) {
  return checked(static_cast<__int128>(3) * forward_flops(config, context), "the number of training FLOPs per token");
}

InferenceMemory inference_memory(const ModelConfig& config, Index context) {
  check_context(context);
  InferenceMemory memory;
  for (const Parameter& p : parameter_list(config)) {
    memory.weights_f32 += 4 * p.shape.numel();
    memory.weights_bf16 += 2 * p.shape.numel();
    memory.weights_q8_0 += quantized_bytes(p, 34);
    memory.weights_q4_0 += quantized_bytes(p, 18);
  }
  const __int128 per_token =
      static_cast<__int128>(2) * 2 * config.num_hidden_layers * config.kv_heads() * config.head_dim();  // keys, values
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
