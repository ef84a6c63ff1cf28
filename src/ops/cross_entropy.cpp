#include "ops/cross_entropy.h"

#include <cmath>
#include <vector>

#include "ops/backend.h"

namespace dsmoe::ops {

namespace {

void check(const Tensor& logits, const Tensor& all_targets, const Tensor* token_losses, const Tensor* dlogits) {
  const Index tokens = all_targets.numel();
  require(all_targets.dtype() == DType::kI32, "[cross_entropy] targets are {}, expected i32",
          to_string(all_targets.dtype()));
  require(logits.rank() == 2 && logits.dim(0) == tokens && logits.dim(1) > 0 && logits.dtype() == DType::kF32,
          "[cross_entropy] logits are {} {}, expected f32 [{}, V]", to_string(logits.dtype()), logits.shape(), tokens);
  require(!token_losses || (token_losses->shape() == Shape({tokens}) &&
                            (token_losses->dtype() == DType::kF32 || token_losses->dtype() == DType::kF64)),
          "[cross_entropy] the tokens' losses must be f32 or f64 [{}]", tokens);
  require(!dlogits || dlogits->shape() == logits.shape(), "[cross_entropy] the gradient must be {}", logits.shape());
  if (all_targets.device() == Device::kCpu) check_targets(all_targets.span<std::int32_t>(), logits.dim(1));
}

// The sum over the tokens in order; a loss that is not finite is an Error with its token.
Tensor add_up(std::span<const double> losses, std::span<const std::int32_t> targets, Tensor* token_losses) {
  Tensor result = Tensor::zeros(DType::kF64, {2});
  double *const sum = result.data<double>(), *const count = sum + 1;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (!std::isfinite(losses[t]))
      fail(ErrorCode::kNumeric, "the loss of token {} is {}; look for NaN or infinity in the logits and weights", t,
           losses[t]);
    *sum += losses[t];
    *count += targets[t] != kIgnoredTarget;
    if (!token_losses) continue;
    if (token_losses->dtype() == DType::kF64)
      token_losses->data<double>()[t] = losses[t];
    else
      token_losses->data<float>()[t] = static_cast<float>(losses[t]);
  }
  return result;
}

}  // namespace

void check_targets(std::span<const std::int32_t> targets, Index vocab) {
  for (std::size_t t = 0; t < targets.size(); ++t)
    require(targets[t] == kIgnoredTarget || (0 <= targets[t] && targets[t] < vocab),
            "token {} has target {}, but the vocabulary has {} tokens ({} for no target)", t, targets[t], vocab,
            kIgnoredTarget);
}

Tensor cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, Tensor* token_losses, Tensor* dlogits,
                     float scale) {
  check(logits, targets, token_losses, dlogits);
  const auto on_cpu = [&](auto&& run) {
    std::vector<double> losses(static_cast<std::size_t>(targets.numel()));
    run(targets.span<std::int32_t>(), losses);
    return add_up(losses, targets.span<std::int32_t>(), token_losses);
  };
  using Targets = std::span<const std::int32_t>;
  using Losses = std::span<double>;
  return on_backend(
      ctx, [&] { return on_cpu([&](Targets t, Losses l) { ref::cross_entropy(logits, t, l, dlogits, scale); }); },
      [&] { return on_cpu([&](Targets t, Losses l) { cpu::cross_entropy(ctx, logits, t, l, dlogits, scale); }); },
      [&] { return cuda::cross_entropy(ctx, logits, targets, token_losses, dlogits, scale); });
}

}  // namespace dsmoe::ops
