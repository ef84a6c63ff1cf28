#include "ops/linear.h"

#include "ops/dispatch.h"

namespace dsmoe::ops::ref {

void linear(const Tensor& x, const Tensor& w, Tensor& y) {
  const Index t = x.dim(0), n = w.dim(0), k = w.dim(1);
  dispatch(x.dtype(), [&]<class T>(T) {
    dispatch(y.dtype(), [&]<class Y>(Y) {
      for (Index i = 0; i < t; ++i) {
        for (Index j = 0; j < n; ++j) {
          double sum = 0;
          for (Index p = 0; p < k; ++p)
            sum += static_cast<double>(static_cast<float>(x.data<T>()[i * k + p])) *
                   static_cast<float>(w.data<T>()[j * k + p]);
          y.data<Y>()[i * n + j] = Y(static_cast<float>(sum));
        }
      }
    });
  });
}

void linear_backward_input(const Tensor& dy, const Tensor& w, Tensor& dx, bool accumulate) {
  const Index t = dy.dim(0), n = w.dim(0), k = w.dim(1);
  dispatch(dy.dtype(), [&]<class T>(T) {
    for (Index i = 0; i < t; ++i) {
      for (Index p = 0; p < k; ++p) {
        double sum = accumulate ? dx.data<float>()[i * k + p] : 0.0;
        for (Index j = 0; j < n; ++j)
          sum +=
              static_cast<double>(static_cast<float>(dy.data<T>()[i * n + j])) * static_cast<float>(w.data<T>()[j * k + p]);
        dx.data<float>()[i * k + p] = static_cast<float>(sum);
      }
    }
  });
}

void linear_backward_weight(const Tensor& dy, const Tensor& x, Tensor& dw) {
  const Index t = dy.dim(0), n = dy.dim(1), k = x.dim(1);
  dispatch(dy.dtype(), [&]<class T>(T) {
    for (Index j = 0; j < n; ++j) {
      for (Index p = 0; p < k; ++p) {
        double sum = dw.data<float>()[j * k + p];
        for (Index i = 0; i < t; ++i)
          sum +=
              static_cast<double>(static_cast<float>(dy.data<T>()[i * n + j])) * static_cast<float>(x.data<T>()[i * k + p]);
        dw.data<float>()[j * k + p] = static_cast<float>(sum);
      }
    }
  });
}

}  // namespace dsmoe::ops::ref
