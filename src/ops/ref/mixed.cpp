// f32 rows times matrices in another dtype. With a quantized matrix, the rows are rounded to 8 bits in blocks of 32 first:
// x ≈ scale * q, scale = largest / 127, q to nearest even. That is the semantics; sums are in double.
#include "ops/mixed.h"

#include <cmath>
#include <vector>

#include "ops/dispatch.h"
#include "ops/quantize.h"
#include "ops/repack.h"
#include "ops/repacked_layout.h"

namespace dsmoe::ops {

void to_floats(DType dtype, const void* row, std::span<float> x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (dtype == DType::kF32) x[i] = static_cast<const float*>(row)[i];
    if (dtype == DType::kF16) x[i] = static_cast<float>(static_cast<const Float16*>(row)[i]);
    if (dtype == DType::kBF16) x[i] = static_cast<float>(static_cast<const BFloat16*>(row)[i]);
  }
  if (is_quantized(dtype)) dequantize_row(dtype, row, x);
}

void row_to_floats(DType dtype, const void* matrix, Index ld, Index row, std::span<float> x) {
  const Index within = is_repacked(dtype) ? row % kRepackedRows : 0;
  const char* const at = static_cast<const char*>(matrix) + static_cast<std::size_t>(row - within) * row_bytes(dtype, ld);
  is_repacked(dtype) ? repacked_row(dtype, at, within, x) : to_floats(dtype, at, x);
}

Tensor dequantized(const Tensor& t, DType dtype) {
  Tensor out(dtype, t.shape());
  const Index columns = t.dim(t.rank() - 1), rows = columns > 0 ? t.numel() / columns : 0;
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (Index r = 0; r < rows; ++r) {
    row_to_floats(t.dtype(), t.raw(), columns, r, row);
    for (Index c = 0; c < columns; ++c)
      if (dtype == DType::kBF16)
        out.data<BFloat16>()[r * columns + c] = BFloat16(row[static_cast<std::size_t>(c)]);
      else
        out.data<float>()[r * columns + c] = row[static_cast<std::size_t>(c)];
  }
  return out;
}

namespace ref {

namespace {

std::vector<double> rounded_row(DType weights, const float* x, Index k) {
  std::vector<double> out(x, x + k);
  if (!is_quantized(weights)) return out;
  for (Index b = 0; b < k; b += 32) {
    float most = 0;
    bool bad = false;
    for (Index i = b; i < b + 32; ++i) most = std::fmax(most, std::fabs(x[i])), bad = bad || !std::isfinite(x[i]);
    for (Index i = b; i < b + 32; ++i) {
      const double q = most < 1e-30f ? 0 : std::nearbyint(x[i] * (127.0f / most));
      out[static_cast<std::size_t>(i)] = bad ? NAN : q * static_cast<double>(most / 127.0f);
    }
  }
  return out;
}

// w x for a matrix [n, k].
std::vector<double> times(const ExpertMatrix& w, Index n, const float* x, Index k) {
  const DType dtype = w.dtype;
  const std::vector<double> in = rounded_row(dtype, x, k);
  std::vector<float> row(static_cast<std::size_t>(k));
  std::vector<double> out(static_cast<std::size_t>(n));
  for (Index j = 0; j < n; ++j) {
    row_to_floats(dtype, w.data, w.ld, j, row);
    for (std::size_t i = 0; i < row.size(); ++i) out[static_cast<std::size_t>(j)] += row[i] * in[i];
  }
  return out;
}

// fn(expert, row, where its hidden numbers begin) for every row.
template <class Fn>
void each_row(const Experts& w, const ExpertRows& rows, Fn fn) {
  Index at = 0;
  for (Index e = 0; e < w.count(); ++e)
    for (Index r = rows.offset[static_cast<std::size_t>(e)]; r < rows.offset[static_cast<std::size_t>(e) + 1];
         ++r, at += w.width(e))
      fn(e, static_cast<std::size_t>(r), at);
}

}  // namespace

void linear_mixed(const Tensor& x, const Tensor& w, Tensor& y) {
  const Index n = w.dim(0), k = w.dim(1);
  for (Index t = 0; t < x.dim(0); ++t) {
    const std::vector<double> out = times({w.raw(), k, w.dtype()}, n, x.data<float>() + t * k, k);
    for (Index j = 0; j < n; ++j) y.data<float>()[t * n + j] = static_cast<float>(out[static_cast<std::size_t>(j)]);
  }
}

void head_linear_mixed(const HeadNumbers& x, const HeadRows& w, HeadNumbers& y) {
  const Index k = w.w.dim(1);
  for (Index t = 0; t < x.x.dim(0); ++t)
    for (Index h = 0; h < w.part.heads; ++h) {
      const Tensor rows = w.w.rows(h * w.rows() + w.part.first, h * w.rows() + w.part.first + w.part.width);
      const Index from = t * x.x.dim(1) + h * x.dim() + x.part.first, to = t * y.x.dim(1) + h * y.dim() + y.part.first;
      std::vector<float> in(static_cast<std::size_t>(k));
      to_floats(x.x.dtype(), static_cast<const char*>(x.x.raw()) + row_bytes(x.x.dtype(), from), in);
      const std::vector<double> sums = times({rows.raw(), k, rows.dtype()}, rows.dim(0), in.data(), k);
      dispatch(y.x.dtype(), [&]<class T>(T) {
        for (std::size_t n = 0; n < sums.size(); ++n)
          y.x.data<T>()[to + static_cast<Index>(n)] = T(static_cast<float>(sums[n]));
      });
    }
}

void experts_gate_up_mixed(const Experts& w, const ExpertRows& rows, const Tensor& x, Tensor& h) {
  each_row(w, rows, [&](Index e, std::size_t r, Index at) {
    const float* in = x.data<float>() + rows.token[r] * w.model_width();
    const std::vector<double> gate = times(w.gate_matrix(e), w.width(e), in, w.model_width());
    const std::vector<double> up = times(w.up_matrix(e), w.width(e), in, w.model_width());
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const double g = static_cast<float>(gate[i]), u = static_cast<float>(up[i]);
      h.data<float>()[at + static_cast<Index>(i)] = static_cast<float>(g / (1 + std::exp(-g)) * u);
    }
  });
}

void experts_down_combine_mixed(const Experts& w, const ExpertRows& rows, const Tensor& h, Tensor& y) {
  std::vector<double> sum(static_cast<std::size_t>(y.numel()));
  each_row(w, rows, [&](Index e, std::size_t r, Index at) {
    const std::vector<double> out = times(w.down_matrix(e), w.model_width(), h.data<float>() + at, w.width(e));
    for (Index d = 0; d < w.model_width(); ++d)
      sum[static_cast<std::size_t>(rows.token[r] * w.model_width() + d)] +=
          rows.weight[r] * out[static_cast<std::size_t>(d)];
  });
  for (std::size_t i = 0; i < sum.size(); ++i) y.data<float>()[i] = static_cast<float>(sum[i]);
}

}  // namespace ref

}  // namespace dsmoe::ops
