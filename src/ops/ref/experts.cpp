#include "ops/experts.h"

#include <cmath>
#include <vector>

#include "ops/dispatch.h"

namespace dsmoe::ops::ref {

namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

template <class T>
double at(const ExpertMatrix& m, Index row, Index col) {
  return static_cast<float>(static_cast<const T*>(m.data)[row * m.ld + col]);
}
template <class T>
double at(const Tensor& t, Index row, Index col) {
  return static_cast<float>(t.data<T>()[row * t.dim(1) + col]);
}

// fn(expert, row) for every row, experts in order.
template <class Fn>
void each_row(const ExpertRows& rows, Fn fn) {
  for (Index e = 0; e < rows.experts(); ++e)
    for (Index r = rows.offset[static_cast<std::size_t>(e)]; r < rows.offset[static_cast<std::size_t>(e) + 1]; ++r)
      fn(e, static_cast<std::size_t>(r));
}

}  // namespace

void experts_gate_up(const Experts& w, const ExpertRows& rows, const Tensor& x, Tensor& h, ExpertActivations* keep) {
  const Index width = w.width(0);
  dispatch(w.dtype(), [&]<class T>(T) {
    each_row(rows, [&](Index e, std::size_t r) {
      for (Index f = 0; f < width; ++f) {
        double gate = 0, up = 0;
        for (Index d = 0; d < w.model_width(); ++d) {
          const double in = at<T>(x, rows.token[r], d);
          gate += at<T>(w.gate_matrix(e), f, d) * in;
          up += at<T>(w.up_matrix(e), f, d) * in;
        }
        const Index i = static_cast<Index>(r) * width + f;
        // Rounded to storage before use, so that backward sees the numbers that forward used.
        const T g(static_cast<float>(gate)), u(static_cast<float>(up));
        if (keep) keep->gate_up.data<T>()[2 * i - f] = g, keep->gate_up.data<T>()[2 * i - f + width] = u;
        const double gd = static_cast<float>(g), ud = static_cast<float>(u);
        h.data<T>()[i] = T(static_cast<float>(gd * sigmoid(gd) * ud));
      }
    });
  });
}

void experts_down_combine(const Experts& w, const ExpertRows& rows, const Tensor& h, Tensor& y) {
  std::vector<double> sum(static_cast<std::size_t>(y.numel()));
  dispatch(w.dtype(), [&]<class T>(T) {
    each_row(rows, [&](Index e, std::size_t r) {
      for (Index d = 0; d < w.model_width(); ++d) {
        double out = 0;
        for (Index f = 0; f < w.width(0); ++f) out += at<T>(w.down_matrix(e), d, f) * at<T>(h, static_cast<Index>(r), f);
        sum[static_cast<std::size_t>(rows.token[r] * w.model_width() + d)] += rows.weight[r] * out;
      }
    });
    for (std::size_t i = 0; i < sum.size(); ++i) y.data<T>()[i] = T(static_cast<float>(sum[i]));
  });
}

void experts_down_backward(const Experts& w, const ExpertRows& rows, const Tensor& dy, const ExpertActivations& kept,
                           ExpertRowGrads& d) {
  dispatch(w.dtype(), [&]<class T>(T) {
    each_row(rows, [&](Index e, std::size_t r) {
      double weight_grad = 0;
      for (Index f = 0; f < w.width(0); ++f) {
        double dh = 0;
        for (Index c = 0; c < w.model_width(); ++c) dh += at<T>(w.down_matrix(e), c, f) * at<T>(dy, rows.token[r], c);
        const double g = at<T>(kept.gate_up, static_cast<Index>(r), f);
        const double u = at<T>(kept.gate_up, static_cast<Index>(r), w.width(0) + f);
        const double s = sigmoid(g), scale = rows.weight[r];
        const Index i = static_cast<Index>(r) * w.width(0) + f, gate = 2 * i - f, up = gate + w.width(0);
        weight_grad += dh * g * s * u;
        d.gate_up.data<T>()[gate] = T(static_cast<float>(scale * dh * u * s * (1 + g * (1 - s))));
        d.gate_up.data<T>()[up] = T(static_cast<float>(scale * dh * g * s));
        d.scaled_h.data<T>()[i] = T(static_cast<float>(scale * g * s * u));
      }
      d.weight.data<float>()[r] = static_cast<float>(weight_grad);
    });
  });
}

void experts_gate_up_backward(const Experts& w, const ExpertRows& rows, const ExpertRowGrads& d, Tensor& dx) {
  std::vector<double> sum(static_cast<std::size_t>(dx.numel()));
  dispatch(w.dtype(), [&]<class T>(T) {
    each_row(rows, [&](Index e, std::size_t r) {
      for (Index c = 0; c < w.model_width(); ++c) {
        double s = 0;
        for (Index f = 0; f < w.width(0); ++f)
          s += at<T>(w.gate_matrix(e), f, c) * at<T>(d.gate_up, static_cast<Index>(r), f) +
               at<T>(w.up_matrix(e), f, c) * at<T>(d.gate_up, static_cast<Index>(r), w.width(0) + f);
        sum[static_cast<std::size_t>(rows.token[r] * w.model_width() + c)] += s;
      }
    });
  });
  for (std::size_t i = 0; i < sum.size(); ++i) dx.data<float>()[i] = static_cast<float>(dx.data<float>()[i] + sum[i]);
}

void experts_weight_backward(const ExpertRows& rows, const Tensor& x, const Tensor& dy, const ExpertRowGrads& d,
                             Experts& grads) {
  const Index width = d.scaled_h.dim(1), model = x.dim(1);
  dispatch(x.dtype(), [&]<class T>(T) {
    for (Index e = 0; e < grads.count(); ++e) {
      const auto to = [](const ExpertMatrix& m) { return static_cast<float*>(const_cast<void*>(m.data)); };
      float *const dgate = to(grads.gate_matrix(e)), *const dup = to(grads.up_matrix(e));
      float* const ddown = to(grads.down_matrix(e));
      for (Index f = 0; f < width; ++f) {
        for (Index c = 0; c < model; ++c) {
          double gate = 0, up = 0, down = 0;
          for (Index r = rows.offset[static_cast<std::size_t>(e)]; r < rows.offset[static_cast<std::size_t>(e) + 1]; ++r) {
            const Index t = rows.token[static_cast<std::size_t>(r)];
            gate += at<T>(d.gate_up, r, f) * at<T>(x, t, c);
            up += at<T>(d.gate_up, r, width + f) * at<T>(x, t, c);
            down += at<T>(d.scaled_h, r, f) * at<T>(dy, t, c);
          }
          float &dg = dgate[f * model + c], &du = dup[f * model + c], &dd = ddown[c * width + f];
          dg = static_cast<float>(dg + gate);
          du = static_cast<float>(du + up);
          dd = static_cast<float>(dd + down);
        }
      }
    }
  });
}

}  // namespace dsmoe::ops::ref
