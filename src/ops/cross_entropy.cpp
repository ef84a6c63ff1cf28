#include "ops/cross_entropy.h"

#include <cmath>
#include <vector>

#include "core/fail.h"

namespace dsmoe::ops {

namespace {

void check(const Tensor& logits, std::span<const std::int32_t> targets, const Tensor* token_losses, const Tensor* dlogits) {
  const auto tokens = static_cast<Index>(targets.size());
  require(logits.rank() == 2 && logits.dim(0) == tokens && logits.dim(1) > 0 && logits.dtype() == DType::kF32,
          "[cross_entropy] logits are {} {}, expected f32 [{}, V]", to_string(logits.dtype()), logits.shape(),
          tokens);
  require(!token_losses || (token_losses->shape() == Shape({tokens}) && token_losses->dtype() == DType::kF32),
          "[cross_entropy] the tokens' losses must be f32 [{}]", tokens);
  require(!dlogits || dlogits->shape() == logits.shape(), "[cross_entropy] the gradient must be {}", logits.shape());
  for (std::size_t t = 0; t < targets.size(); ++t)
    require(targets[t] == kIgnoredTarget || (0 <= targets[t] && targets[t] < logits.dim(1)),
            "token {} has target {}, but the vocabulary has {} tokens ({} for no target)", t, targets[t], logits.dim(1),
            kIgnoredTarget);
}

}  // namespace

CrossEntropy cross_entropy(Context& ctx, const Tensor& logits, std::span<const std::int32_t> targets, Tensor* token_losses,
                           Tensor* dlogits, float scale) {
  check(logits, targets, token_losses, dlogits);
  std::vector<double> losses(targets.size());
  ctx.backend() == Backend::kRef ? ref::cross_entropy(logits, targets, losses, dlogits, scale)
                                 : cpu::cross_entropy(ctx, logits, targets, losses, dlogits, scale);
  CrossEntropy result;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (!std::isfinite(losses[t]))
      fail(ErrorCode::kNumeric, "the loss of token {} is {}; look for NaN or infinity in the logits and weights", t,
           losses[t]);
    result.loss_sum += losses[t];
    result.count += targets[t] != kIgnoredTarget;
    if (token_losses) token_losses->data<float>()[t] = static_cast<float>(losses[t]);
  }
  return result;
}

}  // namespace dsmoe::ops
