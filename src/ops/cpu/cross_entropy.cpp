#include "ops/cross_entropy.h"

#include <cmath>

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

// Returns the loss; `gradient` (may be x, may be null) becomes scale * (softmax(x) - onehot(target)).
double loss_of_row(const KernelTable& kt, Index n, const float* x, std::int32_t target, float* gradient, float scale) {
  constexpr Index kPiece = 1024;  // summed in f32, the pieces' sums in double
  const double at_target = x[target];
  const float largest = kt.largest(n, x);
  float unused[kPiece];
  double sum = 0;
  for (Index i = 0; i < n; i += kPiece)
    sum += kt.exp_shifted(std::min(kPiece, n - i), 1.0f, largest, x + i, gradient ? gradient + i : unused);
  if (gradient) {
    kt.scale(n, static_cast<float>(scale / sum), gradient, gradient);
    gradient[target] -= scale;
  }
  return largest + std::log(sum) - at_target;
}

}  // namespace

void cross_entropy(Context& ctx, const Tensor& logits, std::span<const std::int32_t> targets, std::span<double> losses,
                   Tensor* dlogits, float scale) {
  constexpr Index kRowsPerTask = 4;  // rows are long
  const KernelTable& kt = kernels();
  const Index v = logits.dim(1);
  dispatch(dlogits ? dlogits->dtype() : DType::kF32, [&]<class T>(T) {
    T* const all = dlogits ? dlogits->data<T>() : nullptr;
    each_block(ctx, logits.dim(0), kRowsPerTask, [&](Index first, Index last, int worker) {
      for (Index t = first; t < last; ++t) {
        const auto token = static_cast<std::size_t>(t);
        T* const out = all ? all + t * v : nullptr;
        if (targets[token] == kIgnoredTarget) {
          if (out) std::fill(out, out + v, T{});
          continue;
        }
        float* gradient = nullptr;
        if constexpr (sizeof(T) == 4) {
          gradient = out;
        } else if (out) {
          gradient = static_cast<float*>(ctx.scratch(worker, static_cast<std::size_t>(v) * sizeof(float)));
        }
        losses[token] = loss_of_row(kt, v, logits.data<float>() + t * v, targets[token], gradient, scale);
        if constexpr (sizeof(T) == 2) {
          if (out) from_f32(kt, v, gradient, out);
        }
      }
    });
  });
}

}  // namespace dsmoe::ops::cpu
