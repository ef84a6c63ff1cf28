#include "ops/elementwise.h"

#include <algorithm>

#include "ops/dispatch.h"

namespace dsmoe::ops::ref {

void add(const Tensor& y, Tensor& x) {
  dispatch(y.dtype(), [&]<class T>(T) {
    for (Index i = 0; i < x.numel(); ++i) x.data<float>()[i] += static_cast<float>(y.data<T>()[i]);
  });
}

void convert(const Tensor& from, Tensor& to) {
  dispatch(from.dtype(), [&]<class From>(From) {
    dispatch(to.dtype(), [&]<class To>(To) {
      for (Index i = 0; i < from.numel(); ++i) to.data<To>()[i] = To(static_cast<float>(from.data<From>()[i]));
    });
  });
}

void add_bias(const Tensor& bias, Tensor& y) {
  const Index n = y.dim(1);
  dispatch(bias.dtype(), [&]<class B>(B) {
    dispatch(y.dtype(), [&]<class T>(T) {
      for (Index i = 0; i < y.numel(); ++i)
        y.data<T>()[i] = T(static_cast<float>(y.data<T>()[i]) + static_cast<float>(bias.data<B>()[i % n]));
    });
  });
}

void add_bias_backward(const Tensor& dy, Tensor& dbias) {
  const Index n = dy.dim(1);
  dispatch(dy.dtype(), [&]<class T>(T) {
    for (Index j = 0; j < n; ++j) {
      double sum = dbias.data<float>()[j];
      for (Index t = 0; t < dy.dim(0); ++t) sum += static_cast<float>(dy.data<T>()[t * n + j]);
      dbias.data<float>()[j] = static_cast<float>(sum);
    }
  });
}

void scale(float factor, Tensor& x) {
  for (float& v : x.span<float>()) v *= factor;
}

void add_up(const Tensor& parts, Tensor& to) {
  const Index n = to.numel();
  std::copy_n(parts.data<float>(), n, to.data<float>());
  for (Index p = 1; p < parts.dim(0); ++p)
    for (Index i = 0; i < n; ++i) to.data<float>()[i] += parts.data<float>()[p * n + i];
}

}  // namespace dsmoe::ops::ref
