#include "model/weights.h"

#include "core/fail.h"

namespace dsmoe {

template <class Moe>
Tensor& ModelTensors<Moe>::at(const Parameter& p) {
  LayerTensors<Moe>* layer = p.layer >= 0 ? &layers.at(static_cast<std::size_t>(p.layer)) : nullptr;
  const auto expert = [&]() -> ExpertTensors& { return layer->moe.routed.at(static_cast<std::size_t>(p.expert)); };
  switch (p.kind) {
    case ParameterKind::kEmbedding: return embedding;
    case ParameterKind::kFinalNorm: return final_norm;
    case ParameterKind::kHead: return head;
    case ParameterKind::kInputNorm: return layer->input_norm;
    case ParameterKind::kPostAttentionNorm: return layer->post_attention_norm;
    case ParameterKind::kQueryWeight: return layer->q.weight;
    case ParameterKind::kQueryBias: return layer->q.bias;
    case ParameterKind::kKeyWeight: return layer->k.weight;
    case ParameterKind::kKeyBias: return layer->k.bias;
    case ParameterKind::kValueWeight: return layer->v.weight;
    case ParameterKind::kValueBias: return layer->v.bias;
    case ParameterKind::kOutputWeight: return layer->o.weight;
    case ParameterKind::kOutputBias: return layer->o.bias;
    case ParameterKind::kRouter: return layer->moe.gate;
    case ParameterKind::kRouterBias:
      if constexpr (requires { layer->moe.gate_bias; }) return layer->moe.gate_bias;
      break;
    case ParameterKind::kExpertGate: return expert().gate_proj;
    case ParameterKind::kExpertUp: return expert().up_proj;
    case ParameterKind::kExpertDown: return expert().down_proj;
    case ParameterKind::kSharedGate: return layer->moe.shared.gate_proj;
    case ParameterKind::kSharedUp: return layer->moe.shared.up_proj;
    case ParameterKind::kSharedDown: return layer->moe.shared.down_proj;
    case ParameterKind::kDenseGate: return layer->mlp.gate_proj;
    case ParameterKind::kDenseUp: return layer->mlp.up_proj;
    case ParameterKind::kDenseDown: return layer->mlp.down_proj;
  }
  fail(ErrorCode::kInternal, "internal error: {} has no place in a model", p.name);
}

template struct ModelTensors<MoeWeights>;
template struct ModelTensors<MoeGradients>;

namespace {

template <class Model>
Model with_room(const ModelConfig& config) {
  Model m;
  m.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
  for (Index l = 0; l < config.num_hidden_layers; ++l)
    if (config.is_moe_layer(l))
      m.layers[static_cast<std::size_t>(l)].moe.routed.resize(static_cast<std::size_t>(config.routed_experts()));
  return m;
}

}  // namespace

namespace {

// fn(tensor) for every matrix that rows are multiplied with, and the embedding.
template <class Fn>
void each_matrix(const ModelWeights& w, Fn fn) {
  const auto expert = [&](const ExpertTensors& e) { fn(e.gate_proj), fn(e.up_proj), fn(e.down_proj); };
  fn(w.embedding), fn(w.head);
  for (const LayerTensors<MoeWeights>& l : w.layers) {
    fn(l.q.weight), fn(l.k.weight), fn(l.v.weight), fn(l.o.weight);
    expert(l.mlp), expert(l.moe.shared);
    for (const ExpertTensors& e : l.moe.routed) expert(e);
  }
}

bool all_of(const ModelWeights& w, DType dtype) {
  bool all = true;
  each_matrix(w, [&](const Tensor& t) { all = all && (t.numel() == 0 || t.dtype() == dtype); });
  return all;
}

}  // namespace

DType activation_dtype(const ModelWeights& w) { return all_of(w, DType::kBF16) ? DType::kBF16 : DType::kF32; }
bool trainable(const ModelWeights& w) { return all_of(w, DType::kF32) || all_of(w, DType::kBF16); }

ModelWeights empty_weights(const ModelConfig& config) { return with_room<ModelWeights>(config); }

ModelGradients zero_gradients(const ModelConfig& config) {
  auto g = with_room<ModelGradients>(config);
  for (const Parameter& p : parameter_list(config))
    if (has_gradient(p.kind)) g.at(p) = Tensor::zeros(DType::kF32, p.shape);
  if (config.tie_word_embeddings) g.head = g.embedding;
  return g;
}

}  // namespace dsmoe
