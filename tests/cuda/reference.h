// The layer in double precision by plain loops, with the choice of experts given: the oracle of the CUDA tests.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "dsmoe/moe_config.h"

namespace dsmoe::test {

using Doubles = std::vector<double>;

inline void parallel_for(Index n, const std::function<void(Index)>& body) {
  std::atomic<Index> next{0};
  std::vector<std::thread> threads;
  const unsigned count = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 0; i < count; ++i)
    threads.emplace_back([&] {
      for (Index j = next++; j < n; j = next++) body(j);
    });
  for (auto& t : threads) t.join();
}

struct Inputs {
  MoeConfig c;
  Index tokens = 0, sequence_length = 0;
  Doubles x, gate, bias, gate_up, down, dy;  // as moe_layer.h lays them out
  std::vector<std::int32_t> ids;             // [T, K]
};

struct Outputs {
  Doubles scores, weights, y;  // [T, E], [T, K], [T, D]
  double loss[3] = {0, 0, 0};
  Doubles dx, dgate, dgate_up, ddown;
};

inline double dot(const double* a, const double* b, Index n) {
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

inline void reference_scores(const Inputs& in, Outputs& out) {
  const Index e = in.c.routed_experts, d = in.c.hidden_size;
  out.scores.resize(static_cast<std::size_t>(in.tokens * e));
  parallel_for(in.tokens, [&](Index t) {
    double* s = &out.scores[static_cast<std::size_t>(t * e)];
    for (Index i = 0; i < e; ++i)
      s[i] = dot(&in.x[static_cast<std::size_t>(t * d)], &in.gate[static_cast<std::size_t>(i * d)], d);
    if (in.c.score == ScoreFunction::kSigmoid) {
      for (Index i = 0; i < e; ++i) s[i] = 1 / (1 + std::exp(-s[i]));
      return;
    }
    const double top = *std::max_element(s, s + e);
    double sum = 0;
    for (Index i = 0; i < e; ++i) sum += s[i] = std::exp(s[i] - top);
    for (Index i = 0; i < e; ++i) s[i] /= sum;
  });
}

inline void reference_weights(const Inputs& in, Outputs& out) {
  const Index k = in.c.experts_per_token;
  out.weights.resize(static_cast<std::size_t>(in.tokens * k));
  for (Index t = 0; t < in.tokens; ++t) {
    double sum = 0;
    for (Index j = 0; j < k; ++j) {
      const auto at = static_cast<std::size_t>(t * k + j);
      sum += out.weights[at] = out.scores[static_cast<std::size_t>(t * in.c.routed_experts + in.ids[at])];
    }
    for (Index j = 0; j < k; ++j) {
      double& w = out.weights[static_cast<std::size_t>(t * k + j)];
      if (in.c.norm_topk_prob && k > 1) w /= sum + 1e-20;
      w *= in.c.routed_scaling_factor;
    }
  }
}

// Each expert's (token, slot) pairs; slot -1 for a shared expert.
struct Pair {
  Index token, slot;
};
inline std::vector<std::vector<Pair>> expert_pairs(const Inputs& in) {
  std::vector<std::vector<Pair>> pairs(static_cast<std::size_t>(in.c.all_experts()));
  for (Index s = 0; s < in.c.shared_experts; ++s)
    for (Index t = 0; t < in.tokens; ++t) pairs[static_cast<std::size_t>(s)].push_back({t, -1});
  for (Index t = 0; t < in.tokens; ++t)
    for (Index j = 0; j < in.c.experts_per_token; ++j)
      pairs[static_cast<std::size_t>(in.c.shared_experts +
                                     in.ids[static_cast<std::size_t>(t * in.c.experts_per_token + j)])]
          .push_back({t, j});
  return pairs;
}

// Counts and mean scores of one sequence or of all tokens, and a loss f . P with its gradient per score.
inline double balance(const Inputs& in, const Outputs& out, Index begin, Index length, Index devices, double alpha,
                      double share, Doubles* ds) {
  const Index e = in.c.routed_experts, k = in.c.experts_per_token;
  Doubles f(static_cast<std::size_t>(e)), mean(static_cast<std::size_t>(e));
  for (Index t = begin; t < begin + length; ++t) {
    for (Index j = 0; j < k; ++j)
      f[static_cast<std::size_t>(in.ids[static_cast<std::size_t>(t * k + j)])] +=
          static_cast<double>(e) / static_cast<double>(k * length);
    for (Index i = 0; i < e; ++i)
      mean[static_cast<std::size_t>(i)] += out.scores[static_cast<std::size_t>(t * e + i)] / static_cast<double>(length);
  }
  const Index size = e / devices;
  double loss = 0;
  for (Index g = 0; g < devices; ++g) {
    double group_f = 0, group_p = 0;
    for (Index i = g * size; i < (g + 1) * size; ++i) {
      group_f += f[static_cast<std::size_t>(i)] / static_cast<double>(size);
      group_p += mean[static_cast<std::size_t>(i)];
    }
    loss += alpha * share * group_f * group_p;
    for (Index t = begin; t < begin + length && ds; ++t)
      for (Index i = g * size; i < (g + 1) * size; ++i)
        (*ds)[static_cast<std::size_t>(t * e + i)] += alpha * share * group_f / static_cast<double>(length);
  }
  return loss;
}

inline void reference_losses(const Inputs& in, Outputs& out, Doubles* ds) {
  const Index length = in.sequence_length ? in.sequence_length : in.tokens, e = in.c.routed_experts;
  for (Index b = 0; b < in.tokens; b += length)
    out.loss[0] += balance(in, out, b, length, e, in.c.seq_balance_alpha,
                           static_cast<double>(length) / static_cast<double>(in.tokens), ds);
  out.loss[1] = balance(in, out, 0, in.tokens, e, in.c.batch_balance_alpha, 1, ds);
  out.loss[2] = balance(in, out, 0, in.tokens, in.c.devices, in.c.device_balance_alpha, 1, ds);
}

// Forward of everything; with `backward` also the gradients of sum(y * dy) + losses.
inline Outputs reference(const Inputs& in, bool backward) {
  const Index d = in.c.hidden_size, f = in.c.expert_size, e = in.c.routed_experts, k = in.c.experts_per_token;
  const auto z = [](Index i) { return static_cast<std::size_t>(i); };
  Outputs out;
  reference_scores(in, out);
  reference_weights(in, out);
  const auto pairs = expert_pairs(in);
  out.y.assign(z(in.tokens * d), 0);
  Doubles dw(z(in.tokens * k)), ds(z(in.tokens * e));
  out.dx.assign(z(in.tokens * d), 0);
  out.dgate.assign(z(e * d), 0);
  out.dgate_up.assign(z(in.c.all_experts() * 2 * f * d), 0);
  out.ddown.assign(z(in.c.all_experts() * d * f), 0);
  // Per pair results, added to tokens afterwards in a fixed order.
  std::vector<Doubles> ys(pairs.size()), dxs(pairs.size());
  parallel_for(static_cast<Index>(pairs.size()), [&](Index x) {
    const double* w13 = &in.gate_up[z(x * 2 * f * d)];
    const double* w2 = &in.down[z(x * d * f)];
    Doubles g(z(f)), u(z(f)), h(z(f)), dh(z(f));
    ys[z(x)].assign(pairs[z(x)].size() * z(d), 0);
    if (backward) dxs[z(x)].assign(pairs[z(x)].size() * z(d), 0);
    for (std::size_t p = 0; p < pairs[z(x)].size(); ++p) {
      const auto [t, slot] = pairs[z(x)][p];
      const double* xt = &in.x[z(t * d)];
      const double weight = slot < 0 ? 1 : out.weights[z(t * k + slot)];
      for (Index i = 0; i < f; ++i) {
        g[z(i)] = dot(w13 + i * d, xt, d);
        u[z(i)] = dot(w13 + (f + i) * d, xt, d);
        h[z(i)] = g[z(i)] / (1 + std::exp(-g[z(i)])) * u[z(i)];
      }
      for (Index j = 0; j < d; ++j) ys[z(x)][p * z(d) + z(j)] = weight * dot(w2 + j * f, h.data(), f);
      if (!backward) continue;
      const double* dy = &in.dy[z(t * d)];
      std::fill(dh.begin(), dh.end(), 0);
      for (Index j = 0; j < d; ++j)
        for (Index i = 0; i < f; ++i) {
          dh[z(i)] += dy[j] * w2[j * f + i];
          out.ddown[z((x * d + j) * f + i)] += weight * dy[j] * h[z(i)];
        }
      if (slot >= 0) dw[z(t * k + slot)] = dot(dh.data(), h.data(), f);
      double* dxp = &dxs[z(x)][p * z(d)];
      for (Index i = 0; i < f; ++i) {
        const double s = 1 / (1 + std::exp(-g[z(i)]));
        const double dg = weight * dh[z(i)] * u[z(i)] * (s + g[z(i)] * s * (1 - s)), du = weight * dh[z(i)] * g[z(i)] * s;
        double* gw = &out.dgate_up[z((x * 2 * f + i) * d)];
        double* uw = gw + f * d;
        for (Index j = 0; j < d; ++j) {
          gw[j] += dg * xt[j];
          uw[j] += du * xt[j];
          dxp[j] += dg * w13[i * d + j] + du * w13[(f + i) * d + j];
        }
      }
    }
  });
  for (std::size_t x = 0; x < pairs.size(); ++x)
    for (std::size_t p = 0; p < pairs[x].size(); ++p)
      for (Index j = 0; j < d; ++j) {
        const std::size_t at = z(pairs[x][p].token * d + j);
        out.y[at] += ys[x][p * z(d) + z(j)];
        if (backward) out.dx[at] += dxs[x][p * z(d) + z(j)];
      }
  reference_losses(in, out, &ds);
  if (!backward) return out;
  for (Index t = 0; t < in.tokens; ++t) {
    double sum = 1e-20, weighted = 0;
    const bool norm = in.c.norm_topk_prob && k > 1;
    const auto score = [&](Index j) { return out.scores[z(t * e + in.ids[z(t * k + j)])]; };
    for (Index j = 0; j < k; ++j) {
      sum += score(j);
      weighted += dw[z(t * k + j)] * score(j);
    }
    for (Index j = 0; j < k; ++j)
      ds[z(t * e + in.ids[z(t * k + j)])] +=
          in.c.routed_scaling_factor * (norm ? (dw[z(t * k + j)] - weighted / sum) / sum : dw[z(t * k + j)]);
    const double* s = &out.scores[z(t * e)];
    const double mean = dot(&ds[z(t * e)], s, e);
    for (Index i = 0; i < e; ++i) {
      const double v = ds[z(t * e + i)];
      const double dl = in.c.score == ScoreFunction::kSigmoid ? v * s[i] * (1 - s[i]) : s[i] * (v - mean);
      for (Index j = 0; j < d; ++j) {
        out.dgate[z(i * d + j)] += dl * in.x[z(t * d + j)];
        out.dx[z(t * d + j)] += dl * in.gate[z(i * d + j)];
      }
    }
  }
  return out;
}

}  // namespace dsmoe::test
