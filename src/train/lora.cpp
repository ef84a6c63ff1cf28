#include "train/lora.h"

#include <cmath>
#include <cstring>

#include "core/random.h"
#include "core/threads.h"
#include "ops/dispatch.h"
#include "ops/linear.h"

namespace dsmoe::train {

namespace {

void multiply(Tensor& t, float factor) {
  for (float& x : t.span<float>()) x *= factor;
}

}  // namespace

Lora::Lora(const ModelConfig& config, const ModelWeights& weights, Index rank, double alpha, std::uint64_t seed,
           const std::function<bool(const Parameter&)>& wanted)
    : scale_(static_cast<float>((alpha > 0 ? alpha : 2.0 * static_cast<double>(rank)) / static_cast<double>(rank))) {
  constexpr std::uint64_t kStreams = std::uint64_t{1} << 32;  // apart from those that weights are drawn from
  std::vector<std::uint64_t> streams;
  std::uint64_t next = kStreams;
  Index numbers_a = 0, numbers_b = 0;
  for (const Parameter& p : parameter_list(config)) {
    if (!p.traits.adapter) continue;
    const std::uint64_t stream = next++;  // of the parameter, whether others are frozen or not
    if (!wanted(p)) continue;
    streams.push_back(stream);
    adapters_.push_back({.parameter = p, .base = weights.dense(p).clone()});
    numbers_a += rank * p.shape[1], numbers_b += p.shape[0] * rank;
  }
  for (Tensor* t : {&all_a_, &all_da_}) *t = Tensor::zeros(DType::kF32, {numbers_a});
  for (Tensor* t : {&all_b_, &all_db_}) *t = Tensor::zeros(DType::kF32, {numbers_b});
  Index at_a = 0, at_b = 0;
  for (std::size_t i = 0; i < adapters_.size(); ++i) {
    Adapter& adapter = adapters_[i];
    const Index out = adapter.parameter.shape[0], in = adapter.parameter.shape[1];
    const auto part = [](const Tensor& all, Index first, Shape shape) {
      return all.rows(first, first + shape.numel()).reshape(shape);
    };
    adapter.a = part(all_a_, at_a, {rank, in}), adapter.da = part(all_da_, at_a, {rank, in});
    adapter.b = part(all_b_, at_b, {out, rank}), adapter.db = part(all_db_, at_b, {out, rank});
    at_a += rank * in, at_b += out * rank;
    const Philox random(seed, streams[i]);
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(in)));
    for (Index j = 0; j < adapter.a.numel(); ++j)
      adapter.a.data<float>()[j] = bound * (2 * random.uniform(static_cast<std::uint64_t>(j)) - 1);
  }
}

std::vector<TrainedTensors::Entry> Lora::entries() const {
  std::vector<TrainedTensors::Entry> entries;
  Index at_a = 0, at_b = 0;
  const auto add = [&](const std::string& name, const Tensor& all, const Tensor& gradients, const Shape& shape, Index& at) {
    const auto view = [&](const Tensor& t) { return TensorView(t, shape, at, {1, 1, shape.numel()}, {0, 0}); };
    entries.push_back({name, view(all), view(gradients), /*decay=*/true, /*in_model=*/false, /*trained=*/true});
    at += shape.numel();
  };
  for (const Adapter& adapter : adapters_) {
    add(adapter.parameter.name + ".lora_a", all_a_, all_da_, adapter.a.shape(), at_a);
    add(adapter.parameter.name + ".lora_b", all_b_, all_db_, adapter.b.shape(), at_b);
  }
  return entries;
}

void Lora::gradients(Context& ctx, const ModelGradients& grads) {
  ctx.pool().run(static_cast<Index>(adapters_.size()), [&](Index i, int) {
    Adapter& adapter = adapters_[static_cast<std::size_t>(i)];
    const Tensor dw = grads.dense(adapter.parameter);
    ops::linear(ctx, dw, adapter.a, adapter.db);  // dW · Aᵀ
    std::memset(adapter.da.raw_mutable(), 0, adapter.da.bytes());
    ops::linear_backward_weight(ctx, adapter.b, dw, adapter.da);  // Bᵀ · dW
    multiply(adapter.da, scale_);
    multiply(adapter.db, scale_);
  });
}

void Lora::merge(Context& ctx, const ModelWeights& weights) const {
  ctx.pool().run(static_cast<Index>(adapters_.size()), [&](Index i, int) {
    const Adapter& adapter = adapters_[static_cast<std::size_t>(i)];
    Tensor product(DType::kF32, adapter.base.shape());
    ops::linear_backward_input(ctx, adapter.b, adapter.a, product, /*accumulate=*/false);  // B · A
    Tensor merged(adapter.base.dtype(), adapter.base.shape());
    ops::dispatch(adapter.base.dtype(), [&]<class T>(T) {
      T* const w = merged.data<T>();
      const T* const base = adapter.base.data<T>();
      const float* const add = product.data<float>();
      for (Index j = 0; j < product.numel(); ++j) w[j] = T(static_cast<float>(base[j]) + scale_ * add[j]);
    });
    weights.view(adapter.parameter).assign(merged);
  });
}

}  // namespace dsmoe::train
