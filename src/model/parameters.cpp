#include "model/parameters.h"

#include <fmt/format.h>

namespace dsmoe {

namespace {

using Kind = ParameterKind;

bool between(Kind kind, Kind first, Kind last) { return kind >= first && kind <= last; }

class ListBuilder {
 public:
  explicit ListBuilder(const ModelConfig& config) : c_(config) {}

  std::vector<Parameter> build() {
    add("model.embed_tokens.weight", {c_.vocab_size, c_.hidden_size}, Kind::kEmbedding);
    for (layer_ = 0; layer_ < c_.num_hidden_layers; ++layer_) {
      prefix_ = fmt::format("model.layers.{}.", layer_);
      add_attention();
      if (c_.is_moe_layer(layer_)) {
        add_moe();
      } else {
        add_mlp("mlp.", c_.intermediate_size, Kind::kDenseGate, Kind::kDenseUp, Kind::kDenseDown);
      }
      add("input_layernorm.weight", {c_.hidden_size}, Kind::kInputNorm);
      add("post_attention_layernorm.weight", {c_.hidden_size}, Kind::kPostAttentionNorm);
    }
    layer_ = -1;
    prefix_.clear();
    add("model.norm.weight", {c_.hidden_size}, Kind::kFinalNorm);
    if (!c_.tie_word_embeddings) add("lm_head.weight", {c_.vocab_size, c_.hidden_size}, Kind::kHead);
    return std::move(list_);
  }

 private:
  void add(const std::string& name, Shape shape, Kind kind) {
    list_.push_back({prefix_ + name, shape, kind, layer_, expert_});
  }

  void add_projection(const char* name, Index rows, Index columns, Kind weight, Kind bias) {
    add(fmt::format("self_attn.{}.weight", name), {rows, columns}, weight);
    if (c_.attention_bias) add(fmt::format("self_attn.{}.bias", name), {rows}, bias);
  }

  void add_attention() {
    const Index query = c_.num_attention_heads * c_.head_dim();
    const Index key = c_.kv_heads() * c_.head_dim();
    add_projection("q_proj", query, c_.hidden_size, Kind::kQueryWeight, Kind::kQueryBias);
    add_projection("k_proj", key, c_.hidden_size, Kind::kKeyWeight, Kind::kKeyBias);
    add_projection("v_proj", key, c_.hidden_size, Kind::kValueWeight, Kind::kValueBias);
    add_projection("o_proj", c_.hidden_size, query, Kind::kOutputWeight, Kind::kOutputBias);
  }

  void add_mlp(const std::string& name, Index width, Kind gate, Kind up, Kind down) {
    add(name + "gate_proj.weight", {width, c_.hidden_size}, gate);
    add(name + "up_proj.weight", {width, c_.hidden_size}, up);
    add(name + "down_proj.weight", {c_.hidden_size, width}, down);
  }

  void add_moe() {
    for (expert_ = 0; expert_ < c_.routed_experts(); ++expert_)
      add_mlp(fmt::format("mlp.experts.{}.", expert_), c_.moe_intermediate_size, Kind::kExpertGate, Kind::kExpertUp,
              Kind::kExpertDown);
    expert_ = -1;
    add("mlp.gate.weight", {c_.routed_experts(), c_.hidden_size}, Kind::kRouter);
    if (c_.selection_bias()) add("mlp.gate.e_score_correction_bias", {c_.routed_experts()}, Kind::kRouterBias);
    if (c_.shared_experts() > 0)
      add_mlp("mlp.shared_experts.", c_.shared_experts() * c_.moe_intermediate_size, Kind::kSharedGate, Kind::kSharedUp,
              Kind::kSharedDown);
  }

  const ModelConfig& c_;
  std::vector<Parameter> list_;
  std::string prefix_;
  Index layer_ = -1;
  Index expert_ = -1;
};

}  // namespace

bool is_norm(Kind kind) { return between(kind, Kind::kInputNorm, Kind::kFinalNorm); }
bool is_bias(Kind kind) {
  return kind == Kind::kQueryBias || kind == Kind::kKeyBias || kind == Kind::kValueBias || kind == Kind::kOutputBias ||
         kind == Kind::kRouterBias;
}
bool is_routed_expert(Kind kind) { return between(kind, Kind::kExpertGate, Kind::kExpertDown); }
bool is_shared_expert(Kind kind) { return between(kind, Kind::kSharedGate, Kind::kSharedDown); }
bool is_dense_mlp(Kind kind) { return between(kind, Kind::kDenseGate, Kind::kDenseDown); }
bool is_router(Kind kind) { return kind == Kind::kRouter || kind == Kind::kRouterBias; }
bool is_attention(Kind kind) { return between(kind, Kind::kQueryWeight, Kind::kOutputBias); }
bool has_gradient(Kind kind) { return kind != Kind::kRouterBias; }
DType stored_dtype(Kind kind, DType dtype) { return kind == Kind::kRouterBias ? DType::kF32 : dtype; }

std::vector<Parameter> parameter_list(const ModelConfig& config) {
  config.validate();
  return ListBuilder(config).build();
}

}  // namespace dsmoe
