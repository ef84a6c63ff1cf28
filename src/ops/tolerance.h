// How far two right results of one formula may be apart, derived from the dtype and the length of the sums, and the errors
// that are held against it. The tests and the checks of `dsmoe bench` share these limits.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "dsmoe/tensor.h"

namespace dsmoe::tolerance {

// Half the distance between 1 and the next number: the largest relative error of one rounding.
inline double rounding_unit(DType dtype) { return dtype == DType::kBF16 ? 0x1p-9 : 0x1p-24; }

// How far two results of one formula may be apart, relative to the norm of the result: each has sums of
// `length` terms in f32, whose rounding errors add up like a random walk, and is stored once. The factor 4 covers
// cancellation in sums of random sign, where the result is about sqrt(length) times smaller than its terms, and
// both sides being rounded.
inline double limit(DType dtype, Index length) {
  return 4 * (rounding_unit(dtype) + std::sqrt(static_cast<double>(length)) * rounding_unit(DType::kF32));
}

// The same at the end of `steps` steps, each of which sums `length` terms in f32 and stores its result in `dtype`.
// Roundings to the dtype are independent and add like a random walk; 3 covers cancellation and the other side being rounded
// too. The errors of the sums are inputs of the next step and add up.
inline double chain_limit(DType dtype, int steps, Index length) {
  return 3 * std::sqrt(static_cast<double>(steps)) * rounding_unit(dtype) +
         4 * steps * std::sqrt(static_cast<double>(length)) * rounding_unit(DType::kF32);
}

// The same for products of f32 rows with quantized weights, against the reference that rounds rows to 8 bits alike: sums
// of integers are exact, so only the terms of `blocks` = length / 32 blocks are rounded, twice or three times each (scale
// times scale, and one or two multiply-adds), and the reference's weights once to f32 (types with minimums).
inline double quantized_limit(Index length) {
  return limit(DType::kF32, 3 * ((length + 31) / 32)) + rounding_unit(DType::kF32);
}

// One step when the largest of 32 normal numbers, about 2.5 deviations, becomes 127: in deviations.
inline constexpr double kInt8Step = 2.5 / 127;
// The relative error of a row of normal numbers that is rounded to such steps: uniform within half a step. 0.6%.
inline constexpr double kInt8Error = kInt8Step * 0.288675;  // 1 / sqrt(12)

// The same after a second product, of `numbers` numbers h = SiLU(gate) up that come from sums of `length` terms in f32 and
// were rounded to 8 bits. The largest of 32 such products is about 5 deviations. A number next to a half goes the other
// way, by a step, as often as its own error is of a step; of such events there may be three deviations more than expected,
// and two where none is expected.
inline double requantized_limit(Index length, Index numbers) {
  const double step = 2 * kInt8Step, count = std::max(1.0, static_cast<double>(numbers));
  const double expected = count * std::sqrt(static_cast<double>(length)) * rounding_unit(DType::kF32) / step;
  return step * std::sqrt((expected + 3 * std::sqrt(expected) + 2) / count);
}

// Through a whole DeepSeekMoE layer, against ops/ref. Stored on the way to y are h, the experts' rows and y; on the way
// back the gate and up outputs, their gradients, the rows of dx and dx, and a bf16 gradient once more.
struct LayerLimits {
  double y, dx;
  double experts, gate;  // gradients
};
struct LayerSizes {
  Index tokens, hidden, expert, routed;  // T, D, F, E
};
inline LayerLimits layer_limits(DType dtype, const LayerSizes& s, DType gradients = DType::kF32) {
  constexpr int kForwardSteps = 3, kBackwardSteps = 5;
  const Index forward = s.hidden + s.expert + s.routed, backward = s.tokens + s.expert + forward;  // terms of the sums
  const double experts = chain_limit(dtype, kBackwardSteps + (gradients == DType::kBF16), backward);
  // The gate's gradient is a difference of larger terms, the more so when it is not a mean over many tokens.
  const double cancelled = 2 * (1 + 1 / std::sqrt(std::max(1.0, static_cast<double>(s.tokens))));
  return {chain_limit(dtype, kForwardSteps, forward), chain_limit(dtype, kBackwardSteps, backward), experts,
          cancelled * experts};
}

inline double value(const Tensor& t, Index i) {
  switch (t.dtype()) {
    case DType::kF32: return t.data<float>()[i];
    case DType::kBF16: return static_cast<float>(t.data<BFloat16>()[i]);
    case DType::kI32: return t.data<std::int32_t>()[i];
    default: return std::numeric_limits<double>::quiet_NaN();
  }
}

// ||got - want|| / ||want||; 0 for equal, infinite for NaN, and absolute where want is all zero.
inline double relative_error(const Tensor& got, const Tensor& want) {
  double difference = 0, norm = 0;
  for (Index i = 0; i < want.numel(); ++i) {
    const double g = value(got, i), w = value(want, i);
    difference += (g - w) * (g - w);
    norm += w * w;
  }
  if (std::isnan(difference) || std::isnan(norm)) return std::numeric_limits<double>::infinity();
  return std::sqrt(difference) / (norm > 0 ? std::sqrt(norm) : 1.0);
}

// The largest relative error of a row of `width` numbers; infinite when one is not finite. A row whose terms cancel is
// measured against half the root mean square of all rows. `want` times `times` is what is wanted.
inline double worst_row_error(const Tensor& got, const Tensor& want, Index width, double times = 1) {
  if (got.shape() != want.shape()) return std::numeric_limits<double>::infinity();
  const Index rows = width > 0 ? want.numel() / width : 0;
  double all = 0, worst = 0;
  for (Index i = 0; i < want.numel(); ++i) all += times * value(want, i) * (times * value(want, i));
  for (Index r = 0; r < rows; ++r) {
    double difference = 0, norm = 0;
    for (Index i = r * width; i < (r + 1) * width; ++i) {
      const double g = value(got, i), w = times * value(want, i);
      if (!std::isfinite(g)) return std::numeric_limits<double>::infinity();
      difference += (g - w) * (g - w);
      norm += w * w;
    }
    const double scale = std::max(norm, 0.25 * all / static_cast<double>(rows));
    worst = std::max(worst, scale == 0 ? std::sqrt(difference) : std::sqrt(difference / scale));
  }
  return worst;
}

}  // namespace dsmoe::tolerance
