#include "model/weights.h"

#include "core/fail.h"

namespace dsmoe {

namespace {

using Kind = ParameterKind;

bool is_gate_matrix(Kind kind) {
  return kind == Kind::kExpertGate || kind == Kind::kSharedGate || kind == Kind::kDenseGate;
}
bool is_up_matrix(Kind kind) { return kind == Kind::kExpertUp || kind == Kind::kSharedUp || kind == Kind::kDenseUp; }

// Experts [first, first + count) of a stack as the MLP that files have: [count * F, D], [count * F, D], [D, count * F].
TensorView stack_view(const Experts& e, Kind kind, Index first, Index count) {
  const Index f = e.width(0), d = e.model_width(), matrix = f * d;
  if (is_gate_matrix(kind) || is_up_matrix(kind)) {
    const Index offset = (2 * first + (is_up_matrix(kind) ? 1 : 0)) * matrix;
    return TensorView(e.gate_up(), {count * f, d}, offset, {count, f, d}, {2 * matrix, d});
  }
  return TensorView(e.down(), {d, count * f}, first * matrix, {d, count, f}, {f, matrix});
}

TensorView expert_view(const LayerTensors& layer, const Parameter& p) {
  const Experts& e = layer.experts;
  const Index routed = is_dense_mlp(p.kind) ? 0 : layer.gate.dim(0), shared = e.count() - routed;
  const Index first = is_routed_expert(p.kind) ? shared + p.expert : 0;
  require(e && first < e.count(), "internal error: {} has no place in a model", p.name);
  if (e.stacked()) return stack_view(e, p.kind, first, is_shared_expert(p.kind) ? shared : 1);
  const ExpertTensors& mlp = e.list()[static_cast<std::size_t>(first)].mlp;
  return TensorView(is_gate_matrix(p.kind) ? mlp.gate_proj : is_up_matrix(p.kind) ? mlp.up_proj : mlp.down_proj);
}

// Where a parameter outside the experts lies.
const Tensor& tensor_of(const ModelTensors& m, const LayerTensors* layer, const Parameter& p) {
  switch (p.kind) {
    case Kind::kEmbedding: return m.embedding;
    case Kind::kFinalNorm: return m.final_norm;
    case Kind::kHead: return m.head;
    case Kind::kInputNorm: return layer->input_norm;
    case Kind::kPostAttentionNorm: return layer->post_attention_norm;
    case Kind::kQueryWeight: return layer->q.weight;
    case Kind::kQueryBias: return layer->q.bias;
    case Kind::kKeyWeight: return layer->k.weight;
    case Kind::kKeyBias: return layer->k.bias;
    case Kind::kValueWeight: return layer->v.weight;
    case Kind::kValueBias: return layer->v.bias;
    case Kind::kOutputWeight: return layer->o.weight;
    case Kind::kOutputBias: return layer->o.bias;
    case Kind::kRouter: return layer->gate;
    case Kind::kRouterBias: return layer->gate_bias;
    default: break;
  }
  fail(ErrorCode::kInternal, "internal error: {} has no place in a model", p.name);
}

bool in_experts(Kind kind) { return is_routed_expert(kind) || is_shared_expert(kind) || is_dense_mlp(kind); }

const LayerTensors* layer_of(const ModelTensors& m, const Parameter& p) {
  return p.layer >= 0 ? &m.layers.at(static_cast<std::size_t>(p.layer)) : nullptr;
}

Tensor& place(ModelTensors& m, const Parameter& p) { return const_cast<Tensor&>(tensor_of(m, layer_of(m, p), p)); }

// fn(dtype) for every matrix that rows are multiplied with, and the embedding.
bool all_of(const ModelWeights& w, DType dtype) {
  bool all = w.embedding.dtype() == dtype && w.head.dtype() == dtype;
  for (const LayerTensors& l : w.layers) {
    for (const Tensor* t : {&l.q.weight, &l.k.weight, &l.v.weight, &l.o.weight})
      all = all && (t->numel() == 0 || t->dtype() == dtype);
    all = all && !l.experts.mixed() && l.experts.dtype() == dtype;
  }
  return all;
}

// Stacks and tensors of a model's own; no selection bias among gradients.
ModelTensors own_tensors(const ModelConfig& c, DType dtype, bool gradients) {
  const auto make = [&](DType type, const Shape& shape) {
    return gradients ? Tensor::zeros(type, shape) : Tensor(type, shape);
  };
  ModelTensors m;
  m.layers.resize(static_cast<std::size_t>(c.num_hidden_layers));
  for (Index l = 0; l < c.num_hidden_layers; ++l) {
    const bool moe = c.is_moe_layer(l);
    const Index count = moe ? c.shared_experts() + c.routed_experts() : 1;
    const Index width = moe ? c.moe_intermediate_size : c.intermediate_size;
    m.layers[static_cast<std::size_t>(l)].experts =
        Experts(make(dtype, {count, 2, width, c.hidden_size}), make(dtype, {count, c.hidden_size, width}));
  }
  for (const Parameter& p : parameter_list(c))
    if (!in_experts(p.kind) && (!gradients || has_gradient(p.kind)))
      place(m, p) = make(gradients ? dtype : stored_dtype(p.kind, dtype), p.shape);
  if (c.tie_word_embeddings) m.head = m.embedding;
  return m;
}

}  // namespace

TensorView ModelTensors::view(const Parameter& p) const {
  const LayerTensors* const layer = layer_of(*this, p);
  return in_experts(p.kind) ? expert_view(*layer, p) : TensorView(tensor_of(*this, layer, p));
}

DType activation_dtype(const ModelWeights& w) { return all_of(w, DType::kBF16) ? DType::kBF16 : DType::kF32; }
bool trainable(const ModelWeights& w) { return all_of(w, DType::kF32) || all_of(w, DType::kBF16); }

ModelWeights empty_weights(const ModelConfig& config, DType dtype) { return own_tensors(config, dtype, false); }
ModelGradients zero_gradients(const ModelConfig& config) { return own_tensors(config, DType::kF32, true); }

ModelWeights listed_weights(const ModelConfig& c, std::span<const Parameter> parameters, std::vector<Tensor> tensors) {
  require(parameters.size() == tensors.size(), "{} tensors for {} parameters", tensors.size(), parameters.size());
  ModelWeights m;
  m.layers.resize(static_cast<std::size_t>(c.num_hidden_layers));
  std::vector<std::vector<ExpertTensors>> routed(m.layers.size());
  std::vector<ExpertTensors> whole(m.layers.size());  // the dense MLP, or the shared experts
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (!in_experts(p.kind)) {
      place(m, p) = std::move(tensors[i]);
      continue;
    }
    const auto layer = static_cast<std::size_t>(p.layer), expert = static_cast<std::size_t>(p.expert);
    if (is_routed_expert(p.kind) && routed[layer].size() <= expert) routed[layer].resize(expert + 1);
    ExpertTensors& mlp = is_routed_expert(p.kind) ? routed[layer][expert] : whole[layer];
    (is_gate_matrix(p.kind) ? mlp.gate_proj : is_up_matrix(p.kind) ? mlp.up_proj : mlp.down_proj) = std::move(tensors[i]);
  }
  for (std::size_t l = 0; l < m.layers.size(); ++l) {
    const bool moe = c.is_moe_layer(static_cast<Index>(l));
    m.layers[l].experts = Experts::listed(moe ? c.shared_experts() : 1, whole[l], routed[l]);
  }
  if (c.tie_word_embeddings) m.head = m.embedding;
  return m;
}

ModelWeights owned_copy(const ModelConfig& config, const ModelWeights& weights, DType dtype) {
  ModelWeights out = empty_weights(config, dtype);
  for (const Parameter& p : parameter_list(config)) out.view(p).assign(weights.dense(p));
  return out;
}

}  // namespace dsmoe
