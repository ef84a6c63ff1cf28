#include "ops/heads.h"

#include "ops/dispatch.h"

namespace dsmoe::ops::ref {

namespace {

// The numbers of a part, in a tensor of type T.
template <class T, class Numbers>
auto* number(Numbers& n, Index t, Index head, Index i) {
  return n.x.template data<T>() + t * n.x.dim(1) + head * n.dim() + n.part.first + i;
}

Index row(const HeadRows& w, Index head, Index i) { return head * w.rows() + w.part.first + i; }

}  // namespace

void copy_heads(const HeadNumbers& from, HeadNumbers& to) {
  dispatch(from.x.dtype(), [&]<class From>(From) {
    dispatch(to.x.dtype(), [&]<class To>(To) {
      for (Index t = 0; t < from.x.dim(0); ++t)
        for (Index h = 0; h < from.part.heads; ++h)
          for (Index i = 0; i < from.part.width; ++i)
            *number<To>(to, t, h, i) = To(static_cast<float>(*number<From>(from, t, h, i)));
    });
  });
}

void head_linear(const HeadNumbers& x, const HeadRows& w, HeadNumbers& y) {
  const Index k = w.w.dim(1);
  dispatch(x.x.dtype(), [&]<class T>(T) {
    for (Index t = 0; t < x.x.dim(0); ++t)
      for (Index h = 0; h < w.part.heads; ++h)
        for (Index n = 0; n < w.part.width; ++n) {
          double sum = 0;
          for (Index i = 0; i < k; ++i)
            sum += static_cast<double>(static_cast<float>(*number<T>(x, t, h, i))) *
                   static_cast<float>(w.w.data<T>()[row(w, h, n) * k + i]);
          *number<T>(y, t, h, n) = T(static_cast<float>(sum));
        }
  });
}

void head_linear_backward_input(const HeadNumbers& dy, const HeadRows& w, HeadNumbers& dx) {
  const Index k = w.w.dim(1);
  dispatch(dy.x.dtype(), [&]<class T>(T) {
    for (Index t = 0; t < dy.x.dim(0); ++t)
      for (Index h = 0; h < w.part.heads; ++h)
        for (Index i = 0; i < k; ++i) {
          double sum = 0;
          for (Index n = 0; n < w.part.width; ++n)
            sum += static_cast<double>(static_cast<float>(*number<T>(dy, t, h, n))) *
                   static_cast<float>(w.w.data<T>()[row(w, h, n) * k + i]);
          *number<T>(dx, t, h, i) = T(static_cast<float>(sum));
        }
  });
}

void head_linear_backward_weight(const HeadNumbers& dy, const HeadNumbers& x, HeadRows& dw) {
  const Index k = dw.w.dim(1);
  dispatch(dy.x.dtype(), [&]<class T>(T) {
    for (Index h = 0; h < dw.part.heads; ++h)
      for (Index n = 0; n < dw.part.width; ++n)
        for (Index i = 0; i < k; ++i) {
          float& to = dw.w.data<float>()[row(dw, h, n) * k + i];
          double sum = to;
          for (Index t = 0; t < dy.x.dim(0); ++t)
            sum += static_cast<double>(static_cast<float>(*number<T>(dy, t, h, n))) *
                   static_cast<float>(*number<T>(x, t, h, i));
          to = static_cast<float>(sum);
        }
  });
}

}  // namespace dsmoe::ops::ref
