#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dsmoe::ops::ref {

namespace {

double dot(const float* x, const float* y, Index n) {
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * y[i];
  return sum;
}

// The probabilities of `keys` keys for one query, in p; returns the log of the sum of e^score.
double probabilities(const float* q, const float* k, Index stride, Index keys, const AttentionShape& s,
                     std::vector<double>& p) {
  p.resize(static_cast<std::size_t>(keys));
  for (Index j = 0; j < keys; ++j) p[static_cast<std::size_t>(j)] = s.scale * dot(q, k + j * stride, s.head_dim);
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - largest);
  for (double& x : p) x /= sum;
  return largest + std::log(sum);
}

}  // namespace

void attention(const AttentionShape& s, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, Index first_position,
               Tensor& out, Tensor* lse) {
  const Index tokens = q.dim(0), dim = s.head_dim, width = s.heads * dim, kv_width = s.kv_heads * dim;
  const Tensor wide_q = q.to(DType::kF32), wide_k = k_cache.rows(0, first_position + tokens).to(DType::kF32);
  const Tensor wide_v = v_cache.rows(0, first_position + tokens).to(DType::kF32);
  Tensor mixed(DType::kF32, out.shape());
  std::vector<double> p;
  for (Index h = 0; h < s.heads; ++h) {
    const Index kv = h / (s.heads / s.kv_heads) * dim;
    for (Index t = 0; t < tokens; ++t) {
      const Index keys = first_position + t + 1;
      const double log_sum =
          probabilities(wide_q.data<float>() + t * width + h * dim, wide_k.data<float>() + kv, kv_width, keys, s, p);
      if (lse) lse->data<float>()[h * tokens + t] = static_cast<float>(log_sum);
      for (Index i = 0; i < dim; ++i) {
        double sum = 0;
        for (Index j = 0; j < keys; ++j)
          sum += p[static_cast<std::size_t>(j)] * wide_v.data<float>()[j * kv_width + kv + i];
        mixed.data<float>()[t * width + h * dim + i] = static_cast<float>(sum);
      }
    }
  }
  const Tensor stored = mixed.to(out.dtype());
  std::copy_n(static_cast<const char*>(stored.raw()), stored.bytes(), static_cast<char*>(out.raw_mutable()));
}

// With p = softmax(scale q·k): dv = pᵀ dout, dp = dout·v, ds = p (dp - <p, dp>), dq = scale ds k, dk = scale dsᵀ q.
void attention_backward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout,
                        Tensor& dq, Tensor& dk, Tensor& dv) {
  const Index tokens = q.dim(0), dim = s.head_dim, width = s.heads * dim, kv_width = s.kv_heads * dim;
  const Tensor wide_q = q.to(DType::kF32), wide_k = k.to(DType::kF32), wide_v = v.to(DType::kF32);
  const Tensor wide_dout = dout.to(DType::kF32);
  std::vector<double> sum_dk(static_cast<std::size_t>(dk.numel())), sum_dv(sum_dk.size()), p, dp;
  for (Index h = 0; h < s.heads; ++h) {
    const Index kv = h / (s.heads / s.kv_heads) * dim;
    for (Index t = 0; t < tokens; ++t) {
      const Index at = t * width + h * dim;
      const float *one_q = wide_q.data<float>() + at, *one_dout = wide_dout.data<float>() + at;
      probabilities(one_q, wide_k.data<float>() + kv, kv_width, t + 1, s, p);
      dp.resize(p.size());
      double mean = 0;
      for (std::size_t j = 0; j < p.size(); ++j) {
        dp[j] = dot(one_dout, wide_v.data<float>() + static_cast<Index>(j) * kv_width + kv, dim);
        mean += p[j] * dp[j];
      }
      for (Index i = 0; i < dim; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < p.size(); ++j) {
          const Index key = static_cast<Index>(j) * kv_width + kv + i;
          const double ds = s.scale * p[j] * (dp[j] - mean);
          sum += ds * wide_k.data<float>()[key];
          sum_dk[static_cast<std::size_t>(key)] += ds * one_q[i];
          sum_dv[static_cast<std::size_t>(key)] += p[j] * one_dout[i];
        }
        dq.data<float>()[at + i] = static_cast<float>(sum);
      }
    }
  }
  std::copy(sum_dk.begin(), sum_dk.end(), dk.data<float>());
  std::copy(sum_dv.begin(), sum_dv.end(), dv.data<float>());
}

}  // namespace dsmoe::ops::ref
