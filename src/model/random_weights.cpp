// The tensors of a freshly initialised model.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/random.h"
#include "core/threads.h"
#include "model/families/family.h"
#include "model/weights.h"
#include "ops/dispatch.h"
#include "ops/fill.h"

namespace dsmoe {

Tensor initial_tensor(const ModelConfig& config, const Parameter& p, std::size_t number, std::uint64_t seed, DType dtype,
                      Context& ctx) {
  Tensor t(stored_dtype(p, dtype), p.shape);
  const Philox rng(seed, number);
  const auto bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.shape[p.shape.rank() - 1])));
  const auto deviation = static_cast<float>(config.initializer_range);
  // Numbers 4i to 4i + 3 of the tensor.
  const auto draw = [&](std::uint64_t i) -> std::array<float, 4> {
    if (p.traits.initial == InitialValue::kOnes) return {1, 1, 1, 1};
    if (p.traits.initial == InitialValue::kZeros) return {};
    std::array<float, 4> four = rng.normals(i);
    for (std::size_t j = 0; j < 4; ++j)
      four[j] = p.traits.initial == InitialValue::kUniform ? bound * (2 * rng.uniform(4 * i + j) - 1) : deviation * four[j];
    return four;
  };
  ops::dispatch(t.dtype(), [&]<class T>(T) {
    T* const to = t.data<T>();
    constexpr Index kPiece = 1 << 16;
    ctx.pool().run((t.numel() + kPiece - 1) / kPiece, [&](Index task, int) {
      const Index end = std::min(t.numel(), (task + 1) * kPiece);
      for (Index i = task * kPiece; i < end; i += 4) {
        const std::array<float, 4> four = draw(static_cast<std::uint64_t>(i / 4));
        for (Index j = 0; j < std::min<Index>(4, end - i); ++j) to[i + j] = T(four[static_cast<std::size_t>(j)]);
      }
    });
    if (p.in(ParameterGroup::kEmbedding) && config.pad_token_id) {
      const Index row = *config.pad_token_id, width = p.shape[1];
      if (row < p.shape[0]) std::fill_n(to + row * width, width, T(0.0f));
    }
  });
  return t;
}

ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed, DType dtype, Context& ctx, ExpertShare share) {
  config.validate();
  ModelWeights w = empty_weights(spec_of(config), dtype, Device::kCpu, share);
  const std::vector<Parameter> parameters = parameter_list(config);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (w.holds(parameters[i])) w.view(parameters[i]).assign(initial_tensor(config, parameters[i], i, seed, dtype, ctx));
  return w;
}

ModelWeights benchmark_weights(const ModelConfig& config, DType dtype, Context& ctx) {
  config.validate();
  ModelWeights w = empty_weights(spec_of(config), dtype, ctx.device());
  std::uint64_t seed = 0;
  const auto fill = [&](Tensor& t, float mean, float deviation) { ops::fill_normal(ctx, t, mean, deviation, ++seed); };
  const auto deviation = static_cast<float>(config.initializer_range);
  for (LayerTensors& l : w.layers)
    for (Tensor* t : {&l.experts.gate_up(), &l.experts.down()}) fill(*t, 0, deviation);
  for (const Parameter& p : parameter_list(config)) {
    if (std::holds_alternative<ExpertPlace>(p.place)) continue;
    Tensor t = w.view(p).tensor;
    const bool constant = p.traits.initial == InitialValue::kOnes || p.traits.initial == InitialValue::kZeros;
    fill(t, p.traits.initial == InitialValue::kOnes ? 1.0f : 0.0f, constant ? 0.0f : deviation);
  }
  return w;
}

}  // namespace dsmoe
