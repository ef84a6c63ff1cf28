// Gradients from differences of an objective, to hold against backward passes.
#pragma once

#include <cmath>

#include "dsmoe/tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {

inline constexpr double kDifferenceStep = 0x1p-5;

// d objective() / d x for f32 x, which objective() reads: central differences of fourth order.
template <class Objective>
Tensor finite_differences(Tensor& x, Objective objective) {
  Tensor slope(DType::kF32, x.shape());
  for (Index i = 0; i < x.numel(); ++i) {
    float& at = x.data<float>()[i];
    const float old = at;
    const auto difference = [&](double step) {
      at = static_cast<float>(old + step);
      const double up = objective();
      at = static_cast<float>(old - step);
      const double down = objective();
      at = old;
      return up - down;
    };
    slope.data<float>()[i] =
        static_cast<float>((8 * difference(kDifferenceStep) - difference(2 * kDifferenceStep)) / (12 * kDifferenceStep));
  }
  return slope;
}

// <x, direction>: turns a tensor into a number whose gradient is known.
inline double inner_product(const Tensor& x, const Tensor& direction) {
  double sum = 0;
  for (Index i = 0; i < x.numel(); ++i) sum += value(x, i) * value(direction, i);
  return sum;
}

// How far a right gradient may be from differences, by norm: the remainder, step^4 / 30 of the fifth derivative,
// which for functions of numbers of order one may be 5! times the value; and f32 rounding of each of the outputs
// and of x, divided by the step.
inline double difference_limit(Index outputs) {
  const double rounding = rounding_unit(DType::kF32) * std::sqrt(static_cast<double>(outputs) + 1);
  return 4 * std::pow(kDifferenceStep, 4) + 4 * rounding / kDifferenceStep;
}

}  // namespace dsmoe::test
