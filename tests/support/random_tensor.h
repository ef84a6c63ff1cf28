// Random tensors for tests: the same numbers on every machine.
#pragma once

#include "core/random.h"
#include "dsmoe/tensor.h"
#include "ops/quantize.h"

namespace dsmoe::test {

inline Tensor random_tensor(DType dtype, Shape shape, std::uint64_t seed, float scale = 1.0f) {
  Tensor t(DType::kF32, shape);
  const Philox rng(seed, 99);
  for (Index i = 0; i < t.numel(); ++i) t.data<float>()[i] = scale * rng.normal(static_cast<std::uint64_t>(i));
  return t.to(dtype);
}

// The same in any dtype that weights may have; quantized types by ops::quantize_row. [N, K]
inline Tensor random_weights(DType dtype, Shape shape, std::uint64_t seed, float scale = 1.0f) {
  const Tensor x = random_tensor(DType::kF32, shape, seed, scale);
  if (!is_quantized(dtype)) return x.to(dtype);
  Tensor t(dtype, shape);
  ops::quantize_row(dtype, x.span<float>(), t.raw_mutable());  // rows are whole blocks
  return t;
}

// Whole numbers for drawing shapes: draw(n) is uniform in [0, n).
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : rng_(seed, 7) {}
  Index operator()(Index n) { return static_cast<Index>(rng_.below(next_++, static_cast<std::uint64_t>(n))); }
  Index between(Index low, Index high) { return low + (*this)(high - low + 1); }

 private:
  Philox rng_;
  std::uint64_t next_ = 0;
};

}  // namespace dsmoe::test
