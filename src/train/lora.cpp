#include "train/lora.h"

#include <cmath>
#include <cstring>

#include "core/random.h"
#include "core/threads.h"
#include "ops/dispatch.h"
#include "ops/linear.h"

namespace dsmoe::train {

namespace {

bool has_adapter(const Parameter& p) {
  return p.shape.rank() == 2 &&
         (is_attention(p.kind) || is_routed_expert(p.kind) || is_shared_expert(p.kind) || is_dense_mlp(p.kind));
}

void multiply(Tensor& t, float factor) {
  for (float& x : t.span<float>()) x *= factor;
}

}  // namespace

Lora::Lora(const ModelConfig& config, ModelWeights& weights, Index rank, double alpha, std::uint64_t seed)
    : scale_(static_cast<float>((alpha > 0 ? alpha : 2.0 * static_cast<double>(rank)) / static_cast<double>(rank))) {
  constexpr std::uint64_t kStreams = std::uint64_t{1} << 32;  // apart from those that weights are drawn from
  for (const Parameter& p : parameter_list(config)) {
    if (!has_adapter(p)) continue;
    const Index out = p.shape[0], in = p.shape[1];
    Adapter adapter{.parameter = p,
                    .base = weights.at(p).clone(),
                    .a = Tensor(DType::kF32, {rank, in}),
                    .b = Tensor::zeros(DType::kF32, {out, rank}),
                    .da = Tensor::zeros(DType::kF32, {rank, in}),
                    .db = Tensor::zeros(DType::kF32, {out, rank})};
    const Philox random(seed, kStreams + adapters_.size());
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(in)));
    for (Index i = 0; i < adapter.a.numel(); ++i)
      adapter.a.data<float>()[i] = bound * (2 * random.uniform(static_cast<std::uint64_t>(i)) - 1);
    adapters_.push_back(std::move(adapter));
  }
}

void Lora::gradients(Context& ctx, ModelGradients& grads) {
  ctx.pool().run(static_cast<Index>(adapters_.size()), [&](Index i, int) {
    Adapter& adapter = adapters_[static_cast<std::size_t>(i)];
    const Tensor& dw = grads.at(adapter.parameter);
    ops::linear(ctx, dw, adapter.a, adapter.db);  // dW · Aᵀ
    std::memset(adapter.da.raw_mutable(), 0, adapter.da.bytes());
    ops::linear_backward_weight(ctx, adapter.b, dw, adapter.da);  // Bᵀ · dW
    multiply(adapter.da, scale_);
    multiply(adapter.db, scale_);
  });
}

void Lora::merge(Context& ctx, ModelWeights& weights) const {
  ctx.pool().run(static_cast<Index>(adapters_.size()), [&](Index i, int) {
    const Adapter& adapter = adapters_[static_cast<std::size_t>(i)];
    Tensor product(DType::kF32, adapter.base.shape());
    ops::linear_backward_input(ctx, adapter.b, adapter.a, product, /*accumulate=*/false);  // B · A
    ops::dispatch(adapter.base.dtype(), [&]<class T>(T) {
      T* const w = weights.at(adapter.parameter).data<T>();
      const T* const base = adapter.base.data<T>();
      const float* const add = product.data<float>();
      for (Index j = 0; j < product.numel(); ++j) w[j] = T(static_cast<float>(base[j]) + scale_ * add[j]);
    });
  });
}

}  // namespace dsmoe::train
