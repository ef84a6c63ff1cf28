#include "ops/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/fail.h"
#include "core/threads.h"

namespace dsmoe::ops {

namespace {

constexpr Index kTokensPerTask = 32;
constexpr double kNormEpsilon = 1e-20;  // of the reference

template <class Fn>
void each_token(Context& ctx, Index tokens, Fn fn) {
  ctx.pool().run((tokens + kTokensPerTask - 1) / kTokensPerTask, [&](Index task, int) {
    for (Index t = task * kTokensPerTask; t < std::min(tokens, (task + 1) * kTokensPerTask); ++t) fn(t);
  });
}

// The `k` best of the candidates in `index`, best first, the lower index first among equals.
void take_best(std::vector<std::int32_t>& index, const float* value, Index k) {
  std::partial_sort(index.begin(), index.begin() + k, index.end(), [value](std::int32_t a, std::int32_t b) {
    return value[a] > value[b] || (value[a] == value[b] && a < b);
  });
  index.resize(static_cast<std::size_t>(k));
}

// Experts that may be chosen: all, or those of the best groups.
void candidates(const MoeConfig& c, const float* choice, std::vector<std::int32_t>& index) {
  const Index e = c.routed_experts;
  if (c.groups_per_token >= c.groups) {
    index.resize(static_cast<std::size_t>(e));
    std::iota(index.begin(), index.end(), 0);
    return;
  }
  const Index size = e / c.groups;
  std::vector<float> group(static_cast<std::size_t>(c.groups));
  for (Index g = 0; g < c.groups; ++g) {
    float best = -INFINITY, second = -INFINITY;
    for (Index i = g * size; i < (g + 1) * size; ++i) {
      if (choice[i] > best) {
        second = best;
        best = choice[i];
      } else {
        second = std::max(second, choice[i]);
      }
    }
    group[static_cast<std::size_t>(g)] = c.group_score == GroupScore::kMax ? best : best + second;
  }
  std::vector<std::int32_t> chosen_groups(static_cast<std::size_t>(c.groups));
  std::iota(chosen_groups.begin(), chosen_groups.end(), 0);
  take_best(chosen_groups, group.data(), c.groups_per_token);
  std::sort(chosen_groups.begin(), chosen_groups.end());
  index.clear();
  for (const std::int32_t g : chosen_groups)
    for (Index i = g * size; i < (g + 1) * size; ++i) index.push_back(static_cast<std::int32_t>(i));
}

// Masks experts: their scores become lower than all others.
void bar(const RoutingOverrides& o, const MoeConfig& c, std::vector<float>& choice) {
  for (const auto& [layer, expert] : o.disabled)
    if (layer == c.layer_index) choice[static_cast<std::size_t>(expert)] = -INFINITY;
  std::vector<std::int32_t> best(choice.size());
  std::iota(best.begin(), best.end(), 0);
  take_best(best, choice.data(), o.skip_best);
  for (const std::int32_t expert : best) choice[static_cast<std::size_t>(expert)] = -INFINITY;
}

[[noreturn]] void fail_not_finite(const MoeConfig& c, Index token, Index expert, float value) {
  const std::string layer = c.layer_index >= 0 ? fmt::format("layer {}, ", c.layer_index) : "";
  fail(ErrorCode::kNumeric,
       "{}token {}: the gate's score for expert {} is {}; look for NaN or infinity in this layer's input and gate weights",
       layer, token, expert, value);
}

void check_bias(const MoeConfig& c, const float* bias) {
  for (Index i = 0; i < c.routed_experts; ++i)
    if (!std::isfinite(bias[i]))
      fail(ErrorCode::kNumeric, "{}the selection bias of expert {} is {}; the model's weights may be damaged",
           c.layer_index >= 0 ? fmt::format("layer {}: ", c.layer_index) : "", i, bias[i]);
}

bool normalises(const MoeConfig& c) { return c.norm_topk_prob && c.experts_per_token > 1; }

}  // namespace

Chosen route(Context& ctx, const MoeConfig& c, const Tensor& logits, const Tensor& bias,
             const RoutingOverrides* overrides) {
  const Index tokens = logits.dim(0), e = c.routed_experts, k = c.experts_per_token;
  require(logits.shape() == Shape({tokens, e}), "[route] logits are {}, expected [{}, {}]", logits.shape(), tokens, e);
  require(!c.selection_bias || bias.shape() == Shape({e}), "[route] the selection bias is {}, expected [{}]", bias.shape(),
          e);
  Chosen out{Tensor(DType::kF32, {tokens, e}), Tensor(DType::kI32, {tokens, k}), Tensor(DType::kF32, {tokens, k})};
  if (c.router_z_alpha > 0) out.lse = Tensor(DType::kF32, {tokens});
  float *const all_scores = out.scores.data<float>(), *const weights = out.weights.data<float>();
  float* const lse = c.router_z_alpha > 0 ? out.lse.data<float>() : nullptr;
  auto* const experts = out.experts.data<std::int32_t>();
  const float* shift = c.selection_bias ? bias.data<float>() : nullptr;
  if (shift) check_bias(c, shift);
  const auto score_row = ctx.backend() == Backend::kRef ? ref::scores_row : cpu::scores_row;

  each_token(ctx, tokens, [&](Index t) {
    const float* in = logits.data<float>() + t * e;
    for (Index i = 0; i < e; ++i)
      if (!std::isfinite(in[i])) fail_not_finite(c, t, i, in[i]);
    float* scores = all_scores + t * e;
    score_row(c.score, e, in, scores);
    if (lse) {  // the best score is 1 / E at least, so nothing is lost
      const Index best = std::max_element(in, in + e) - in;
      lse[t] = in[best] - std::log(scores[best]);
    }

    std::vector<float> biased;
    const float* choice = scores;
    if (shift || overrides) {
      biased.assign(scores, scores + e);
      if (shift)
        for (Index i = 0; i < e; ++i) biased[static_cast<std::size_t>(i)] += shift[i];
      if (overrides) bar(*overrides, c, biased);
      choice = biased.data();
    }
    std::vector<std::int32_t> index;
    candidates(c, choice, index);
    take_best(index, choice, k);
    require(choice[index.back()] > -INFINITY, "layer {}: the chosen groups have not {} experts left", c.layer_index, k);

    double sum = 0;
    for (const std::int32_t i : index) sum += scores[i];
    const double factor = c.routed_scaling_factor / (normalises(c) ? sum + kNormEpsilon : 1.0);
    for (Index j = 0; j < k; ++j) {
      experts[t * k + j] = index[static_cast<std::size_t>(j)];
      weights[t * k + j] = static_cast<float>(scores[index[static_cast<std::size_t>(j)]] * factor);
    }
  });
  return out;
}

Tensor route_backward(Context& ctx, const MoeConfig& c, const Chosen& chosen, const Tensor& dweights, const Tensor& dscores,
                      const Tensor& dlse) {
  const Index tokens = chosen.scores.dim(0), e = c.routed_experts, k = c.experts_per_token;
  Tensor dlogits(DType::kF32, {tokens, e});
  float* const out = dlogits.data<float>();
  const bool has_scores = dscores.numel() > 0;
  const float* const dl = dlse.numel() > 0 ? dlse.data<float>() : nullptr;
  each_token(ctx, tokens, [&](Index t) {
    const float* s = chosen.scores.data<float>() + t * e;
    const std::int32_t* index = chosen.experts.data<std::int32_t>() + t * k;
    const float* dw = dweights.data<float>() + t * k;
    std::vector<double> ds(static_cast<std::size_t>(e));
    if (has_scores)
      for (Index i = 0; i < e; ++i) ds[static_cast<std::size_t>(i)] = dscores.data<float>()[t * e + i];

    // w_j = scale * s_j / n with n = sum of the chosen s (or 1): dw/ds_i = scale * ([i = j] / n - s_j / n²).
    double n = 1, mean = 0;
    if (normalises(c)) {
      n = kNormEpsilon;
      for (Index j = 0; j < k; ++j) n += s[index[j]];
      for (Index j = 0; j < k; ++j) mean += static_cast<double>(dw[j]) * s[index[j]] / n;
    }
    for (Index j = 0; j < k; ++j) ds[static_cast<std::size_t>(index[j])] += c.routed_scaling_factor * (dw[j] - mean) / n;

    if (c.score == ScoreFunction::kSoftmax) {
      double inner = 0;
      for (Index i = 0; i < e; ++i) inner += ds[static_cast<std::size_t>(i)] * s[i];
      if (dl) inner -= dl[t];  // d lse / d logit = s
      for (Index i = 0; i < e; ++i) out[t * e + i] = static_cast<float>(s[i] * (ds[static_cast<std::size_t>(i)] - inner));
    } else {
      for (Index i = 0; i < e; ++i)
        out[t * e + i] = static_cast<float>(ds[static_cast<std::size_t>(i)] * s[i] * (1.0 - s[i]));
    }
  });
  return dlogits;
}

}  // namespace dsmoe::ops
