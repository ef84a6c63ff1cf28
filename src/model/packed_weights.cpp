// Weights in GPU memory with quantized matrices packed: a copy of those of a file, and random ones for benchmarks.
#include <array>
#include <map>
#include <utility>

#include "core/fail.h"
#include "model/families/family.h"
#include "model/modules.h"
#include "model/weights.h"
#include "ops/fill.h"
#include "ops/mixed.h"
#include "ops/pack.h"
#include "ops/quantize.h"

namespace dsmoe {

namespace {

using Matrix = Tensor ExpertTensors::*;
constexpr std::array<Matrix, 3> kMatrices = {&ExpertTensors::gate_proj, &ExpertTensors::up_proj, &ExpertTensors::down_proj};

// As bf16, whatever it is: one rounding of what its blocks stand for.
Tensor as_bf16(const Tensor& t) { return is_quantized(t.dtype()) ? ops::dequantized(t, DType::kBF16) : t.to(DType::kBF16); }

// The experts of one layer as a file lists them: the shared ones, or the one of a dense layer, as one wide MLP.
struct Listed {
  ExpertTensors whole;
  std::vector<ExpertTensors> routed;
};

// The matrices of one layer's experts, where they lie.
Listed listed(std::span<const Parameter> parameters, const ParameterReader& reader, Index layer,
              const ExpertsShape& shape) {
  Listed out;
  out.routed.resize(static_cast<std::size_t>(shape.routed));
  for (const Parameter& p : parameters)
    if (const auto* const place = std::get_if<ExpertPlace>(&p.place); place && p.layer == layer)
      (p.expert >= 0 ? out.routed.at(static_cast<std::size_t>(p.expert)) : out.whole).*
          kMatrices[static_cast<std::size_t>(place->part)] = reader.read(p);
  return out;
}

bool can_be_packed(const Listed& e, const ExpertsShape& shape) {
  if (shape.width % 32 != 0) return false;
  for (const Matrix m : kMatrices) {
    if (shape.whole > 0 && !is_quantized((e.whole.*m).dtype())) return false;
    for (const ExpertTensors& one : e.routed)
      if (!is_quantized((one.*m).dtype()) || (one.*m).dtype() != (e.routed.front().*m).dtype()) return false;
  }
  return true;
}

Experts packed_experts(Context& ctx, const Listed& e, const ExpertsShape& shape) {
  ExpertTensors whole, stacks;
  for (const Matrix m : kMatrices) {
    if (shape.whole > 0) whole.*m = ops::packed(ctx, {&(e.whole.*m), 1});
    std::vector<Tensor> all;
    for (const ExpertTensors& one : e.routed) all.push_back(one.*m);
    if (!all.empty()) stacks.*m = ops::packed(ctx, all);
  }
  return Experts::packed(shape.whole, whole, shape.routed, stacks);
}

// Stacks in bf16, whatever the list has.
Experts empty_stacks(Context& ctx, const ExpertsShape& shape, Index model_width) {
  const Index count = shape.whole + shape.routed;
  return Experts(ctx.empty(DType::kBF16, {count, 2, shape.width, model_width}),
                 ctx.empty(DType::kBF16, {count, model_width, shape.width}));
}

// All but the experts: fn(parameter) makes the tensor of each.
template <class Fn>
void each_tensor(const ModelSpec& spec, std::span<const Parameter> parameters, ModelWeights& w, Fn fn) {
  for (const Parameter& p : parameters) {
    if (const auto* const at = std::get_if<ModelPlace>(&p.place)) (*at)(w) = fn(p);
    if (const auto* const at = std::get_if<LayerPlace>(&p.place))
      (*at)(w.layers[static_cast<std::size_t>(p.layer)]) = fn(p);
  }
  if (spec.tied_head) w.head = w.embedding;
}

// So many rows of normal numbers are quantized, and repeated: reading them takes as long as reading others.
constexpr Index kDrawnRows = 64;

class Drawn {
 public:
  Drawn(Context& ctx, float deviation) : ctx_(ctx), deviation_(deviation) {}

  Tensor matrix(DType dtype, Index rows, Index columns) {
    Tensor& some = some_[{dtype, columns}];
    if (some.numel() == 0) some = ops::packed(ctx_, std::array{draw(dtype, columns)});
    return ops::packed_repeat(ctx_, some, rows);
  }
  Tensor plain(const Parameter& p) {
    const bool constant = p.traits.initial == InitialValue::kOnes || p.traits.initial == InitialValue::kZeros;
    Tensor t = ctx_.empty(stored_dtype(p, DType::kBF16), p.shape);
    ops::fill_normal(ctx_, t, p.traits.initial == InitialValue::kOnes ? 1.0f : 0.0f, constant ? 0.0f : deviation_, ++seed_);
    return t;
  }

 private:
  Tensor draw(DType dtype, Index columns) {
    Tensor numbers = ctx_.empty(DType::kF32, {kDrawnRows, columns});
    ops::fill_normal(ctx_, numbers, 0, deviation_, ++seed_);
    const Tensor host = ctx_.fetch(numbers);
    Tensor blocks(dtype, {kDrawnRows, columns});
    for (Index r = 0; r < kDrawnRows; ++r)
      ops::quantize_row(dtype, host.rows(r, r + 1).span<float>(), blocks.rows(r, r + 1).raw_mutable());
    return blocks;
  }

  Context& ctx_;
  float deviation_;
  std::uint64_t seed_ = 0;
  std::map<std::pair<DType, Index>, Tensor> some_;
};

}  // namespace

ModelWeights packed_copy(const ModelSpec& spec, const ModelWeights& weights, Context& ctx) {
  ModelWeights out =
      packed_copy(spec, registered_parameters(spec), {[&](const Parameter& p) { return weights.dense(p); }}, ctx);
  weights.check();
  return out;
}

ModelWeights packed_copy(const ModelSpec& spec, std::span<const Parameter> parameters, const ParameterReader& reader,
                         Context& ctx) {
  const auto done = [&](const Parameter& p) {
    if (reader.done) reader.done(p);
  };
  ModelWeights out;
  out.layers.resize(spec.layers.size());
  each_tensor(spec, parameters, out, [&](const Parameter& p) {
    const Tensor t = reader.read(p);
    const DType dtype = stored_dtype(p, DType::kBF16);
    const bool packs = is_matrix(p) && !p.traits.dense && is_quantized(t.dtype());
    Tensor copy = packs ? ops::packed(ctx, {&t, 1}) : ctx.place(dtype == DType::kBF16 ? as_bf16(t) : t.to(dtype));
    done(p);
    return copy;
  });
  for (std::size_t l = 0; l < spec.layers.size(); ++l) {
    const ExpertsShape shape = experts_shape(spec.layers[l]);
    const auto layer = static_cast<Index>(l);
    const Listed e = listed(parameters, reader, layer, shape);
    const bool packs = can_be_packed(e, shape);
    out.layers[l].experts = packs ? packed_experts(ctx, e, shape) : empty_stacks(ctx, shape, spec.width);
    for (const Parameter& p : parameters) {
      if (p.layer != layer || !std::holds_alternative<ExpertPlace>(p.place)) continue;
      if (!packs) out.view(p).assign(as_bf16(reader.read(p)));
      done(p);
    }
  }
  ctx.synchronize();
  return out;
}

ModelWeights benchmark_weights(const ModelConfig& config, const std::function<DType(const Parameter&)>& dtype_of,
                               Context& ctx) {
  config.validate();
  const ModelSpec spec = spec_of(config);
  Drawn drawn(ctx, static_cast<float>(config.initializer_range));
  ModelWeights w;
  w.layers.resize(spec.layers.size());
  each_tensor(spec, registered_parameters(spec), w, [&](const Parameter& p) {
    const DType dtype = is_matrix(p) && !p.traits.dense ? dtype_of(p) : DType::kBF16;
    return is_quantized(dtype) ? drawn.matrix(dtype, p.shape[0], p.shape[1]) : drawn.plain(p);
  });
  for (std::size_t l = 0; l < spec.layers.size(); ++l) {
    const ExpertsShape shape = experts_shape(spec.layers[l]);
    ExpertTensors whole, stacks;
    for (const Parameter& p : registered_parameters(spec)) {
      const auto* const place = std::get_if<ExpertPlace>(&p.place);
      if (!place || p.layer != static_cast<Index>(l) || p.expert > 0) continue;
      const Matrix m = kMatrices[static_cast<std::size_t>(place->part)];
      const DType dtype = dtype_of(p);
      require(is_quantized(dtype), "{} rows of {} numbers cannot be quantized", p.role, p.shape[1]);
      if (p.expert < 0) whole.*m = drawn.matrix(dtype, p.shape[0], p.shape[1]);
      if (p.expert == 0) stacks.*m = drawn.matrix(dtype, p.shape[0] * shape.routed, p.shape[1]);
    }
    w.layers[l].experts = Experts::packed(shape.whole, whole, shape.routed, stacks);
  }
  return w;
}

}  // namespace dsmoe
