#include "train/lora.h"

#include <cmath>

#include "core/random.h"
#include "core/threads.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace dsmoe::train {

namespace {

// A thread per adapter; a GPU takes them one after another.
template <class Fn>
void each_adapter(Context& ctx, std::size_t count, Fn fn) {
  if (ctx.device() == Device::kCpu)
    return ctx.pool().run(static_cast<Index>(count), [&](Index i, int) { fn(static_cast<std::size_t>(i)); });
  for (std::size_t i = 0; i < count; ++i) fn(i);
}

}  // namespace

Lora::Lora(Context& ctx, const ModelConfig& config, const ModelWeights& weights, Index rank, double alpha,
           std::uint64_t seed, const std::function<bool(const Parameter&)>& wanted)
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
  all_da_ = ctx.zeros(DType::kF32, {numbers_a});
  for (Tensor* t : {&all_b_, &all_db_}) *t = ctx.zeros(DType::kF32, {numbers_b});
  Tensor initial_a(DType::kF32, {numbers_a});
  Index at_a = 0, at_b = 0;
  for (std::size_t i = 0; i < adapters_.size(); ++i) {
    Adapter& adapter = adapters_[i];
    const Index out = adapter.parameter.shape[0], in = adapter.parameter.shape[1];
    const auto part = [](const Tensor& all, Index first, Shape shape) {
      return all.rows(first, first + shape.numel()).reshape(shape);
    };
    adapter.da = part(all_da_, at_a, {rank, in});
    adapter.b = part(all_b_, at_b, {out, rank}), adapter.db = part(all_db_, at_b, {out, rank});
    const Philox random(seed, streams[i]);
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(in)));
    for (Index j = 0; j < rank * in; ++j)
      initial_a.data<float>()[at_a + j] = bound * (2 * random.uniform(static_cast<std::uint64_t>(j)) - 1);
    at_a += rank * in, at_b += out * rank;
  }
  all_a_ = ctx.place(initial_a);
  at_a = 0;
  for (Adapter& adapter : adapters_) {
    adapter.a = all_a_.rows(at_a, at_a + adapter.da.numel()).reshape(adapter.da.shape());
    at_a += adapter.da.numel();
  }
}

std::vector<TrainedTensors::Entry> Lora::entries(const std::function<bool(const Parameter&)>& spread) const {
  std::vector<TrainedTensors::Entry> entries;
  Index at_a = 0, at_b = 0;
  const auto add = [&](const std::string& name, const Tensor& all, const Tensor& gradients, const Shape& shape, Index& at,
                       bool is_spread) {
    const auto view = [&](const Tensor& t) { return TensorView(t, shape, at, {1, 1, shape.numel()}, {0, 0}); };
    entries.push_back({name, view(all), view(gradients), /*decay=*/true, /*in_model=*/false, /*trained=*/true, is_spread});
    at += shape.numel();
  };
  for (const Adapter& adapter : adapters_) {
    add(adapter.parameter.name + ".lora_a", all_a_, all_da_, adapter.a.shape(), at_a, spread(adapter.parameter));
    add(adapter.parameter.name + ".lora_b", all_b_, all_db_, adapter.b.shape(), at_b, spread(adapter.parameter));
  }
  return entries;
}

void Lora::gradients(Context& ctx, const ModelGradients& grads) {
  ctx.fill_zero(all_da_);
  each_adapter(ctx, adapters_.size(), [&](std::size_t i) {
    Adapter& adapter = adapters_[i];
    const Tensor dw = grads.dense(adapter.parameter);
    ops::linear(ctx, dw, adapter.a, adapter.db);                  // dW · Aᵀ
    ops::linear_backward_weight(ctx, adapter.b, dw, adapter.da);  // Bᵀ · dW
  });
  ops::scale(ctx, scale_, all_da_);
  ops::scale(ctx, scale_, all_db_);
}

void Lora::merge(Context& ctx, const ModelWeights& weights) const {
  each_adapter(ctx, adapters_.size(), [&](std::size_t i) {
    const Adapter& adapter = adapters_[i];
    Tensor merged = ctx.empty(DType::kF32, adapter.base.shape());
    ops::linear_backward_input(ctx, adapter.b, adapter.a, merged, /*accumulate=*/false);  // B · A
    ops::scale(ctx, scale_, merged);
    ops::add(ctx, adapter.base, merged);
    weights.view(adapter.parameter).assign(ops::converted(ctx, merged, adapter.base.dtype()));
  });
}

}  // namespace dsmoe::train
