// Limits for comparisons, derived from the dtype and the length of the sums, and the comparison itself.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dsmoe/tensor.h"

namespace dsmoe::test {

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

// By norm over the whole tensor. Says where the worst element is.
inline ::testing::AssertionResult close(const Tensor& got, const Tensor& want, double max_error) {
  if (got.numel() != want.numel())
    return ::testing::AssertionFailure() << "shapes " << got.shape().str() << " and " << want.shape().str();
  const double error = relative_error(got, want);
  if (error <= max_error) return ::testing::AssertionSuccess();
  Index worst = 0;
  double distance = -1;
  for (Index i = 0; i < want.numel(); ++i) {
    const double d = std::abs(value(got, i) - value(want, i));
    if (!(d <= distance)) worst = i, distance = std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
  }
  return ::testing::AssertionFailure() << fmt::format(
             "relative error {:.3g} over the limit {:.3g}; worst at {}: got {}, want {}", error, max_error, worst,
             value(got, worst), value(want, worst));
}

inline ::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype())
    return ::testing::AssertionFailure() << "shapes " << a.shape().str() << " and " << b.shape().str();
  const auto* x = static_cast<const unsigned char*>(a.raw());
  const auto* y = static_cast<const unsigned char*>(b.raw());
  for (std::size_t i = 0; i < a.bytes(); ++i) {
    if (x[i] != y[i]) {
      const auto at = static_cast<Index>(i / size_of(a.dtype()));
      return ::testing::AssertionFailure()
             << fmt::format("first difference at {}: {} and {}", at, value(a, at), value(b, at));
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace dsmoe::test
