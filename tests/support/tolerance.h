// Comparisons that say where two tensors differ. The limits are those of ops/tolerance.h, under this namespace too.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dsmoe/tensor.h"
#include "ops/tolerance.h"

namespace dsmoe::test {

using namespace tolerance;

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
