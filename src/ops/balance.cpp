#include "ops/balance.h"

#include <vector>

namespace dsmoe::ops {

namespace {

// f_i over tokens [begin, end), or over all tokens of all ranks: count_i * E / (tokens * K), 1 when even.
std::vector<double> load_share(const MoeConfig& c, const Chosen& chosen, Index begin, Index end,
                               const BatchLoad* whole = nullptr) {
  const Index k = c.experts_per_token;
  std::vector<double> f(static_cast<std::size_t>(c.routed_experts));
  const std::int32_t* expert = chosen.experts.data<std::int32_t>();
  if (whole) f.assign(whole->load.begin(), whole->load.end());
  for (Index i = begin * k; !whole && i < end * k; ++i) f[static_cast<std::size_t>(expert[i])] += 1;
  const Index tokens = whole ? whole->tokens : end - begin;
  for (double& x : f) x *= static_cast<double>(c.routed_experts) / static_cast<double>(tokens * k);
  return f;
}

// What a token's scores are divided by so that they sum to 1.
double score_sum(const MoeConfig& c, const float* s) {
  if (c.score == ScoreFunction::kSoftmax) return 1;
  double sum = 1e-20;
  for (Index i = 0; i < c.routed_experts; ++i) sum += s[i];
  return sum;
}

// sum_i f_i P_i over tokens [begin, end), P_i their mean score; or these tokens' part of the mean over `all`.
double weighted_mean_score(const MoeConfig& c, const Chosen& chosen, const std::vector<double>& f, Index begin, Index end,
                           Index all) {
  double total = 0;
  for (Index t = begin; t < end; ++t) {
    const float* s = chosen.scores.data<float>() + t * c.routed_experts;
    double sum = 0;
    for (Index i = 0; i < c.routed_experts; ++i) sum += f[static_cast<std::size_t>(i)] * s[i];
    total += sum / score_sum(c, s);
  }
  return total / static_cast<double>(all);
}

// The device-level loss is alpha * sum over devices of mean(f) * sum(P): every expert of a device has the
// device's mean f.
std::vector<double> by_device(const MoeConfig& c, const std::vector<double>& f) {
  const auto size = static_cast<std::size_t>(c.routed_experts / c.devices);
  std::vector<double> mean(f.size());
  for (std::size_t first = 0; first < f.size(); first += size) {
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) sum += f[first + i];
    for (std::size_t i = 0; i < size; ++i) mean[first + i] = sum / static_cast<double>(size);
  }
  return mean;
}

}  // namespace

Tensor balance_losses_on_cpu(const MoeConfig& c, const Chosen& chosen, Index sequence_length, const BatchLoad* whole) {
  Tensor losses = Tensor::zeros(DType::kF64, {4});
  double *const out = losses.data<double>(), &sequence = out[0], &batch = out[1], &device = out[2], &router_z = out[3];
  const Index tokens = chosen.scores.dim(0);
  if (tokens == 0) return losses;
  const Index all = whole ? whole->tokens : tokens;
  if (c.router_z_alpha > 0) {
    for (const float z : chosen.lse.span<float>()) router_z += static_cast<double>(z) * z;
    router_z *= c.router_z_alpha / static_cast<double>(all);
  }
  if (c.seq_balance_alpha > 0) {
    const Index sequences = tokens / sequence_length;
    for (Index b = 0; b < sequences; ++b) {
      const Index begin = b * sequence_length, end = begin + sequence_length;
      sequence += weighted_mean_score(c, chosen, load_share(c, chosen, begin, end), begin, end, sequence_length);
    }
    sequence *= c.seq_balance_alpha / static_cast<double>(whole ? whole->sequences : sequences);
  }
  if (c.batch_balance_alpha > 0 || c.device_balance_alpha > 0) {
    const std::vector<double> f = load_share(c, chosen, 0, tokens, whole);
    if (c.batch_balance_alpha > 0) batch = c.batch_balance_alpha * weighted_mean_score(c, chosen, f, 0, tokens, all);
    if (c.device_balance_alpha > 0)
      device = c.device_balance_alpha * weighted_mean_score(c, chosen, by_device(c, f), 0, tokens, all);
  }
  return losses;
}

Tensor balance_backward(const MoeConfig& c, const Chosen& chosen, Index sequence_length, float scale,
                        const BatchLoad* whole_batch) {
  const Index tokens = chosen.scores.dim(0), e = c.routed_experts;
  const bool whole = c.batch_balance_alpha > 0 || c.device_balance_alpha > 0;
  if (tokens == 0 || (!whole && c.seq_balance_alpha <= 0)) return Tensor(DType::kF32, {0});

  // All three losses are sums over tokens of <a, s / sum(s)> / T with one vector a per sequence.
  std::vector<double> common(static_cast<std::size_t>(e));
  if (whole) {
    const std::vector<double> f = load_share(c, chosen, 0, tokens, whole_batch), g = by_device(c, f);
    for (std::size_t i = 0; i < common.size(); ++i)
      common[i] = c.batch_balance_alpha * f[i] + c.device_balance_alpha * g[i];
  }
  const auto all = static_cast<double>(whole_batch ? whole_batch->tokens : tokens);
  Tensor dscores(DType::kF32, {tokens, e});
  for (Index begin = 0; begin < tokens; begin += sequence_length) {
    std::vector<double> a = common;
    if (c.seq_balance_alpha > 0) {
      const std::vector<double> f = load_share(c, chosen, begin, begin + sequence_length);
      for (std::size_t i = 0; i < a.size(); ++i) a[i] += c.seq_balance_alpha * f[i];
    }
    for (Index t = begin; t < begin + sequence_length; ++t) {
      const float* s = chosen.scores.data<float>() + t * e;
      const double sum = score_sum(c, s);
      double mean = 0;  // of a under s / sum: what normalising takes away; softmax scores are normal already
      for (Index i = 0; c.score != ScoreFunction::kSoftmax && i < e; ++i)
        mean += a[static_cast<std::size_t>(i)] * s[i] / sum;
      for (Index i = 0; i < e; ++i)
        dscores.data<float>()[t * e + i] = static_cast<float>(scale * (a[static_cast<std::size_t>(i)] - mean) / sum / all);
    }
  }
  return dscores;
}

Tensor router_z_backward(const MoeConfig& c, const Chosen& chosen, float scale, const BatchLoad* whole_batch) {
  if (c.router_z_alpha == 0) return Tensor();
  Tensor dlse = chosen.lse.clone();
  const auto all = static_cast<float>(whole_batch ? whole_batch->tokens : dlse.numel());
  for (float& z : dlse.span<float>()) z *= 2 * scale * c.router_z_alpha / all;
  return dlse;
}

}  // namespace dsmoe::ops
