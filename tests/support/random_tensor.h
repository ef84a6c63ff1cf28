// Random tensors for tests: the same numbers on every machine.
#pragma once

#include <algorithm>
#include <array>

#include "core/random.h"
#include "dsmoe/tensor.h"
#include "ops/quantize.h"

namespace dsmoe::test {

inline Tensor random_tensor(DType dtype, Shape shape, std::uint64_t seed, float scale = 1.0f) {
  Tensor t(DType::kF32, shape);
  const Philox rng(seed, 99);
  float* const to = t.data<float>();
  for (Index i = 0; i < t.numel(); i += 4) {
    const std::array<float, 4> four = rng.normals(static_cast<std::uint64_t>(i / 4));
    for (Index j = 0; j < std::min<Index>(4, t.numel() - i); ++j) to[i + j] = scale * four[static_cast<std::size_t>(j)];
  }
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
