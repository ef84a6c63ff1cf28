#include "model/weights.h"

#include "core/fail.h"
#include "model/families/family.h"
#include "model/modules.h"
#include "ops/mixed.h"

namespace dsmoe {

namespace {

// Experts [first, first + count) of a stack as the MLP that files have: [count * F, D], [count * F, D], [D, count * F].
TensorView stack_view(const Experts& e, ExpertPart part, Index first, Index count) {
  const Index f = e.width(0), d = e.model_width(), matrix = f * d;
  if (part == ExpertPart::kDown) return TensorView(e.down(), {d, count * f}, first * matrix, {d, count, f}, {f, matrix});
  const Index offset = (2 * first + (part == ExpertPart::kUp ? 1 : 0)) * matrix;
  return TensorView(e.gate_up(), {count * f, d}, offset, {count, f, d}, {2 * matrix, d});
}

Tensor& matrix_of(ExpertTensors& mlp, ExpertPart part) {
  return part == ExpertPart::kGate ? mlp.gate_proj : part == ExpertPart::kUp ? mlp.up_proj : mlp.down_proj;
}

TensorView expert_view(const Experts& e, const ExpertPlace& place, const Parameter& p, const ExpertShare& share) {
  const bool routed = p.expert >= 0;
  const Index first = routed ? e.count() - share.count(place.experts) + p.expert - share.first(place.experts) : 0;
  require(first >= 0 && first < e.count(), "internal error: {} has no place in a model", p.role);
  if (e.stacked()) return stack_view(e, place.part, first, routed ? 1 : place.experts);
  ExpertTensors mlp = e.list()[static_cast<std::size_t>(first)].mlp;
  return TensorView(matrix_of(mlp, place.part));
}

// Where a parameter outside the experts lies; null for one of theirs.
Tensor* tensor_of(ModelTensors& m, const Parameter& p) {
  if (const auto* const at = std::get_if<ModelPlace>(&p.place)) return &(*at)(m);
  if (const auto* const at = std::get_if<LayerPlace>(&p.place))
    return &(*at)(m.layers.at(static_cast<std::size_t>(p.layer)));
  return nullptr;
}

const Tensor* tensor_of(const ModelTensors& m, const Parameter& p) { return tensor_of(const_cast<ModelTensors&>(m), p); }

const LatentWeights* parts_of(const ModelTensors& m, const Parameter& p) {
  if (p.parts == nullptr) return nullptr;
  const LatentWeights& w = p.parts(const_cast<ModelTensors&>(m).layers.at(static_cast<std::size_t>(p.layer)));
  return w.in_parts() ? &w : nullptr;
}

// Of every matrix that rows are multiplied with, and the embedding.
bool all_of(const ModelSpec& spec, const ModelWeights& w, DType dtype) {
  for (const LayerTensors& l : w.layers)
    if (l.experts.mixed() || l.experts.dtype() != dtype) return false;
  for (const Parameter& p : registered_parameters(spec))
    if (is_matrix(p) && !std::holds_alternative<ExpertPlace>(p.place))
      for (const ModelTensors::Stored& s : w.stored(p))
        if (s.numbers > 0 && s.dtype != dtype) return false;
  return true;
}

// Stacks and tensors of a model's own; no selection bias among gradients. A layer has those of the layer before it that
// `same_as` says, if that is another one.
ModelTensors own_tensors(const ModelSpec& spec, DType dtype, bool gradients, Device device, ExpertShare share,
                         const std::vector<std::size_t>& same_as = {}) {
  const auto is_same = [&](std::size_t layer) { return !same_as.empty() && same_as[layer] != layer; };
  const auto make = [&](DType type, const Shape& shape) {
    return gradients ? Tensor::zeros(type, shape, device) : Tensor(type, shape, device);
  };
  ModelTensors m;
  m.share = share;
  for (const LayerSpec& layer : spec.layers) {
    LayerTensors& tensors = m.layers.emplace_back();
    if (is_same(m.layers.size() - 1)) continue;
    const ExpertsShape e = experts_shape(layer);
    const Index count = e.whole + share.count(e.routed);
    tensors.experts = Experts(make(dtype, {count, 2, e.width, spec.width}), make(dtype, {count, spec.width, e.width}));
  }
  for (const Parameter& p : registered_parameters(spec))
    if (Tensor* const t = tensor_of(m, p);
        t && (!gradients || p.traits.gradient) && (p.layer < 0 || !is_same(static_cast<std::size_t>(p.layer))))
      *t = make(gradients ? dtype : stored_dtype(p, dtype), p.shape);
  for (std::size_t l = 0; l < m.layers.size(); ++l)
    if (is_same(l)) m.layers[l] = m.layers[same_as[l]];
  if (spec.tied_head) m.head = m.embedding;
  return m;
}

}  // namespace

std::vector<std::size_t> turns_of(const ModelSpec& spec) {
  using Kind = std::vector<std::pair<std::string_view, Shape>>;
  std::vector<Kind> kinds(spec.layers.size());
  visit_parameters(spec, [&](const Parameter& p) {
    if (p.layer >= 0) kinds[static_cast<std::size_t>(p.layer)].emplace_back(p.role, p.shape);
  });
  std::vector<std::size_t> first(kinds.size());
  for (std::size_t l = 0; l < kinds.size(); ++l) {
    // The two newest ones of its kind before it: the older of them, once there are two.
    std::vector<std::size_t> alike;
    for (std::size_t before = l; before-- > 0 && alike.size() < 2;)
      if (kinds[before] == kinds[l]) alike.push_back(before);
    first[l] = alike.size() == 2 ? first[alike.back()] : l;
  }
  return first;
}

MoeGradients LayerTensors::moe_gradients() const {
  MoeGradients grads;
  grads.gate = gate, grads.experts = experts, grads.shared_gate = shared_gate;
  return grads;
}

bool ModelTensors::holds(const Parameter& p) const {
  const auto* const place = std::get_if<ExpertPlace>(&p.place);
  return place == nullptr || p.expert < 0 ||
         (share.first(place->experts) <= p.expert && p.expert < share.last(place->experts));
}

std::vector<ModelTensors::Stored> ModelTensors::stored(const Parameter& p) const {
  if (const LatentWeights* const parts = parts_of(*this, p))
    return {{parts->keys.dtype(), parts->keys.numel()}, {parts->values.dtype(), parts->values.numel()}};
  const Tensor* const t = tensor_of(*this, p);
  return {{t ? t->dtype() : view(p).tensor.dtype(), t ? t->numel() : p.shape.numel()}};
}

TensorView ModelTensors::view(const Parameter& p) const {
  if (const LatentWeights* const parts = parts_of(*this, p)) return TensorView(parts->whole());
  if (const Tensor* const t = tensor_of(*this, p)) return TensorView(*t);
  return expert_view(layers.at(static_cast<std::size_t>(p.layer)).experts, std::get<ExpertPlace>(p.place), p, share);
}

DType activation_dtype(const ModelSpec& spec, const ModelWeights& w) {
  const bool packed = w.embedding.device() == Device::kCuda && has_quantized(spec, w);
  return packed || all_of(spec, w, DType::kBF16) ? DType::kBF16 : DType::kF32;
}

bool has_quantized(const ModelSpec& spec, const ModelWeights& w) {
  for (const Parameter& p : registered_parameters(spec))
    if (is_matrix(p) && w.holds(p))
      for (const ModelTensors::Stored& s : w.stored(p))
        if (is_quantized(s.dtype)) return true;
  return false;
}

bool trainable(const ModelSpec& spec, const ModelWeights& w) {
  return all_of(spec, w, DType::kF32) || all_of(spec, w, DType::kBF16);
}

ModelWeights empty_weights(const ModelSpec& spec, DType dtype, Device device, ExpertShare share) {
  return own_tensors(spec, dtype, false, device, share);
}
ModelGradients zero_gradients(const ModelSpec& spec, Device device, ExpertShare share, bool taking_turns) {
  return own_tensors(spec, DType::kF32, true, device, share, taking_turns ? turns_of(spec) : std::vector<std::size_t>());
}

ModelWeights listed_weights(const ModelSpec& spec, std::span<const Parameter> parameters, std::vector<Tensor> tensors) {
  require(parameters.size() == tensors.size(), "{} tensors for {} parameters", tensors.size(), parameters.size());
  ModelWeights m;
  m.layers.resize(spec.layers.size());
  std::vector<std::vector<ExpertTensors>> routed(m.layers.size());
  std::vector<ExpertTensors> whole(m.layers.size());  // the dense MLP, or the shared experts
  for (std::size_t l = 0; l < m.layers.size(); ++l)
    routed[l].resize(static_cast<std::size_t>(experts_shape(spec.layers[l]).routed));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (Tensor* const t = tensor_of(m, p)) {
      *t = std::move(tensors[i]);
      continue;
    }
    const auto layer = static_cast<std::size_t>(p.layer);
    ExpertTensors& mlp = p.expert >= 0 ? routed.at(layer).at(static_cast<std::size_t>(p.expert)) : whole.at(layer);
    matrix_of(mlp, std::get<ExpertPlace>(p.place).part) = std::move(tensors[i]);
  }
  for (std::size_t l = 0; l < m.layers.size(); ++l)
    m.layers[l].experts = Experts::listed(experts_shape(spec.layers[l]).whole, whole[l], routed[l]);
  if (spec.tied_head) m.head = m.embedding;
  return m;
}

ModelWeights owned_copy(const ModelSpec& spec, const ModelWeights& weights, DType dtype, Device device, ExpertShare share) {
  ModelWeights out = owned_copy(spec, registered_parameters(spec), {[&](const Parameter& p) { return weights.dense(p); }},
                                dtype, device, share);
  weights.check();
  return out;
}

ModelWeights owned_copy(const ModelSpec& spec, std::span<const Parameter> parameters, const ParameterReader& reader,
                        DType dtype, Device device, ExpertShare share) {
  ModelWeights out = empty_weights(spec, dtype, device, share);
  for (const Parameter& p : parameters) {
    if (!out.holds(p)) continue;
    const Tensor t = reader.read(p);
    out.view(p).assign(is_quantized(t.dtype()) ? ops::dequantized(t, stored_dtype(p, dtype)) : t);
    if (reader.done) reader.done(p);
  }
  return out;
}

ModelWeights empty_weights(const ModelConfig& config, DType dtype) {
  config.validate();
  return empty_weights(spec_of(config), dtype);
}

ModelWeights listed_weights(const ModelConfig& config, std::span<const Parameter> parameters, std::vector<Tensor> tensors) {
  return listed_weights(spec_of(config), parameters, std::move(tensors));
}

ModelWeights owned_copy(const ModelConfig& config, const ModelWeights& weights, DType dtype, Device device,
                        ExpertShare share) {
  config.validate();
  return owned_copy(spec_of(config), weights, dtype, device, share);
}

ModelGradients zero_gradients(const ModelConfig& config, Device device, ExpertShare share, bool taking_turns) {
  config.validate();
  return zero_gradients(spec_of(config), device, share, taking_turns);
}

}  // namespace dsmoe
