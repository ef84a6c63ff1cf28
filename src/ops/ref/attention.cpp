#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/quantize.h"

namespace dsmoe::ops::ref {

namespace {

double dot(const float* x, const float* y, Index n) {
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * y[i];
  return sum;
}

// The probabilities of `keys` keys for one query, in p; returns the log of the sum of e^score. key(j): the row of key j.
template <class Key>
double probabilities(const float* q, const float* k, Index stride, Index keys, Key key, const AttentionShape& s,
                     std::vector<double>& p) {
  p.resize(static_cast<std::size_t>(keys));
  for (Index j = 0; j < keys; ++j) p[static_cast<std::size_t>(j)] = s.scale * dot(q, k + key(j) * stride, s.head_dim);
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - largest);
  for (double& x : p) x /= sum;
  return largest + std::log(sum);
}

// The row of the cache that holds position p of a slice's sequence.
Index cache_row(const Slice& slice, Index p) {
  return slice.tiles[static_cast<std::size_t>(p / kAttentionTile)] + p % kAttentionTile;
}

Tensor narrowed(const Tensor& x, DType dtype) {
  if (!is_quantized(dtype)) return x.to(dtype);
  const Tensor wide = x.to(DType::kF32);
  Tensor out(dtype, x.shape());
  quantize_row(dtype, wide.span<float>(), out.raw_mutable());
  return out;
}

Tensor widened(const Tensor& x) {
  if (!is_quantized(x.dtype())) return x.to(DType::kF32);
  Tensor out(DType::kF32, x.shape());
  dequantize_row(x.dtype(), x.raw(), out.span<float>());
  return out;
}

}  // namespace

void store_rows(const Tensor& rows, const Slices& slices, Tensor& cache) {
  const Tensor stored = narrowed(rows, cache.dtype());
  const std::size_t bytes = stored.dim(0) > 0 ? stored.bytes() / static_cast<std::size_t>(stored.dim(0)) : 0;
  for (const Slice& slice : slices)
    for (Index i = 0; i < slice.rows; ++i)
      std::memcpy(static_cast<char*>(cache.raw_mutable()) +
                      static_cast<std::size_t>(cache_row(slice, slice.first_position + i)) * bytes,
                  static_cast<const char*>(stored.raw()) + static_cast<std::size_t>(slice.first_row + i) * bytes, bytes);
}

void attention(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Slices& slices,
               Tensor& out, Tensor* lse) {
  const Index tokens = q.dim(0), dim = s.head_dim, width = s.heads * dim, kv_width = s.kv_heads * dim;
  const Tensor wide_q = q.to(DType::kF32), wide_k = widened(k), wide_v = widened(v);
  Tensor mixed(DType::kF32, out.shape());
  std::vector<double> p;
  const auto attend = [&](const Slice& slice, Index h, Index i) {
    const Index kv = h / (s.heads / s.kv_heads) * dim, t = slice.first_row + i, keys = slice.first_position + i + 1;
    const auto key = [&](Index j) { return cache_row(slice, j); };
    const double log_sum =
        probabilities(wide_q.data<float>() + t * width + h * dim, wide_k.data<float>() + kv, kv_width, keys, key, s, p);
    if (lse) lse->data<float>()[h * tokens + t] = static_cast<float>(log_sum);
    for (Index d = 0; d < dim; ++d) {
      double sum = 0;
      for (Index j = 0; j < keys; ++j)
        sum += p[static_cast<std::size_t>(j)] * wide_v.data<float>()[key(j) * kv_width + kv + d];
      mixed.data<float>()[t * width + h * dim + d] = static_cast<float>(sum);
    }
  };
  for (const Slice& slice : slices)
    for (Index h = 0; h < s.heads; ++h)
      for (Index i = 0; i < slice.rows; ++i) attend(slice, h, i);
  const Tensor stored = mixed.to(out.dtype());
  std::copy_n(static_cast<const char*>(stored.raw()), stored.bytes(), static_cast<char*>(out.raw_mutable()));
}

// With p = softmax(scale q·k): dv = pᵀ dout, dp = dout·v, ds = p (dp - <p, dp>), dq = scale ds k, dk = scale dsᵀ q.
void attention_backward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Slices& slices,
                        const Tensor& dout, Tensor& dq, Tensor& dk, Tensor& dv) {
  const Index dim = s.head_dim, width = s.heads * dim, kv_width = s.kv_heads * dim;
  const Tensor wide_q = q.to(DType::kF32), wide_k = k.to(DType::kF32), wide_v = v.to(DType::kF32);
  const Tensor wide_dout = dout.to(DType::kF32);
  std::vector<double> sum_dk(static_cast<std::size_t>(dk.numel())), sum_dv(sum_dk.size()), p, dp;
  const auto go_back = [&](const Slice& slice, Index h, Index t) {
    const Index kv = h / (s.heads / s.kv_heads) * dim, at = (slice.first_row + t) * width + h * dim;
    const auto key = [&](Index j) { return cache_row(slice, j); };
    const float *one_q = wide_q.data<float>() + at, *one_dout = wide_dout.data<float>() + at;
    probabilities(one_q, wide_k.data<float>() + kv, kv_width, t + 1, key, s, p);
    dp.resize(p.size());
    double mean = 0;
    for (std::size_t j = 0; j < p.size(); ++j) {
      dp[j] = dot(one_dout, wide_v.data<float>() + key(static_cast<Index>(j)) * kv_width + kv, dim);
      mean += p[j] * dp[j];
    }
    for (Index i = 0; i < dim; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < p.size(); ++j) {
        const Index element = key(static_cast<Index>(j)) * kv_width + kv + i;
        const double ds = s.scale * p[j] * (dp[j] - mean);
        sum += ds * wide_k.data<float>()[element];
        sum_dk[static_cast<std::size_t>(element)] += ds * one_q[i];
        sum_dv[static_cast<std::size_t>(element)] += p[j] * one_dout[i];
      }
      dq.data<float>()[at + i] = static_cast<float>(sum);
    }
  };
  for (const Slice& slice : slices)
    for (Index h = 0; h < s.heads; ++h)
      for (Index t = 0; t < slice.rows; ++t) go_back(slice, h, t);
  std::copy(sum_dk.begin(), sum_dk.end(), dk.data<float>());
  std::copy(sum_dv.begin(), sum_dv.end(), dv.data<float>());
}

}  // namespace dsmoe::ops::ref
