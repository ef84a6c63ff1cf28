// Layers of many shapes with random weights and inputs, and what the layer makes of them: by the plain loops of ops/ref, or
// on the GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/gpu_test.h"
#include "support/moe_case.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {

struct Case {
  std::string name;
  Index t, d, f, e, s, k;
  ScoreFunction score = ScoreFunction::kSoftmax;
  bool norm = false;
  float scale = 1;
  bool bias = false;
  Index groups = 1, groups_per_token = 1;
  GroupScore group_score = GroupScore::kMax;
  float alpha = 0;  // of all three balance losses
  Index devices = 1, sequence = 0;
  float hot = 0;       // the first expert's bias, and minus that of the last: all tokens choose the one, none the other
  bool gated = false;  // the shared experts
};

inline const std::vector<Case>& fixed_cases() {
  using enum ScoreFunction;
  static const std::vector<Case> cases = {
      {"one_token", 1, 64, 64, 8, 2, 2},
      {"no_tokens", 0, 64, 32, 8, 1, 2},
      {"tile_sizes", 256, 128, 128, 8, 1, 2},
      {"odd", 77, 72, 40, 7, 1, 3, kSoftmax, true},
      {"no_shared", 129, 136, 88, 4, 0, 1, kSigmoid},
      {"all_chosen", 33, 64, 48, 4, 1, 4, kSoftmax, true, 2.5f},
      {"sixteen_b_small", 200, 256, 176, 64, 2, 6, kSoftmax, false, 1, false, 1, 1, GroupScore::kMax, 0.01f, 8, 50},
      {"v3_like", 100, 128, 64, 32, 1, 8, kSigmoid, true, 2.5f, true, 8, 4, GroupScore::kTop2Sum, 0.02f, 4, 25},
      {"group_max", 60, 64, 24, 16, 1, 3, kSoftmax, false, 16, false, 4, 2},
      {"many_experts", 300, 64, 32, 512, 0, 8, kSoftmax, true, 1, false, 1, 1, GroupScore::kMax, 0.1f, 16},
      {"hot_expert", 700, 64, 72, 16, 1, 2, kSigmoid, false, 1, true, 1, 1, GroupScore::kMax, 0.3f, 2, 0, 100},
      {"many_tokens", 5000, 64, 64, 12, 1, 3, kSoftmax, false, 1, false, 1, 1, GroupScore::kMax, 0.01f, 3, 1000},
      // No multiple of 8 anywhere: only the portable paths take these.
      {"unaligned", 45, 37, 19, 5, 1, 2, kSoftmax, true, 1, false, 1, 1, GroupScore::kMax, 0.1f},
      {"unaligned_wide", 130, 101, 67, 9, 2, 4, kSigmoid, false, 1, true},
      // The weight gradients' blocks are an odd number along F and an even one along D: pairs of them share the other
      // operand.
      {"pairs_along_d", 90, 512, 264, 6, 2, 2},
  };
  return cases;
}
// Some of those with shared experts, with a gate in front of these.
inline std::vector<Case> gated_cases() {
  std::vector<Case> gated;
  for (Case c : fixed_cases())
    for (const char* name :
         {"one_token", "no_tokens", "tile_sizes", "odd", "sixteen_b_small", "unaligned_wide", "pairs_along_d"})
      if (c.name == name) gated.push_back(c), gated.back().gated = true;
  return gated;
}
inline Case fixed_case(const std::string& name) {
  for (const Case& c : fixed_cases())
    if (c.name == name) return c;
  throw std::out_of_range(name);
}

// Random shapes: E from 4 to 512, K from 1 to 8, T from 1 to 5000, D and F of which every other is no multiple of 8.
inline Case random_case(int index) {
  Draw draw(1000 + static_cast<std::uint64_t>(index));
  const auto pick = [&](std::initializer_list<Index> from) { return from.begin()[draw(static_cast<Index>(from.size()))]; };
  Case c{"random_" + std::to_string(index), 0, 0, 0, 0, 0, 0};
  c.e = pick({4, 5, 8, 16, 31, 64, 130, 256, 512});
  c.k = std::min<Index>(c.e, draw.between(1, 8));
  c.s = pick({0, 1, 2, 3});
  c.t = pick({1, 2, 3, 9, 40, 65, 129, 333, 600, 1100, 2000, 5000});
  const Index step = index % 2 ? 1 : 8, largest = c.t > 1000 ? 48 : c.e > 100 ? 72 : 160;
  const auto width = [&] { return (8 + draw(largest) + step - 1) / step * step; };
  c.d = width();
  c.f = width();
  c.score = draw(2) ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
  c.norm = draw(2) == 1;
  c.scale = draw(2) ? 1.0f : 2.5f;
  c.bias = draw(2) == 1;
  c.alpha = draw(3) ? 0.05f : 0.0f;
  if (draw(3) == 0 && c.e > c.k) c.hot = 50;  // one overloaded expert, one empty
  for (const Index parts : {2, 3, 4, 5})
    if (c.t % parts == 0 && draw(2)) c.sequence = c.t / parts;
  for (const Index devices : {2, 4, 5, 8})
    if (c.e % devices == 0) c.devices = devices;
  return c;
}

inline MoeConfig config_of(const Case& c) {
  MoeConfig m = moe_config(c.d, c.f, c.e, c.k, c.s);
  m.score = c.score;
  m.norm_topk_prob = c.norm;
  m.routed_scaling_factor = c.scale;
  m.selection_bias = c.bias || c.hot != 0;
  m.shared_gate = c.gated;
  m.groups = c.groups;
  m.groups_per_token = c.groups_per_token;
  m.group_score = c.group_score;
  m.seq_balance_alpha = c.alpha;
  m.batch_balance_alpha = 2 * c.alpha;
  m.device_balance_alpha = 3 * c.alpha;
  m.devices = c.devices;
  return m;
}

struct Inputs {
  MoeConfig config;
  Index sequence = 0;
  MoeWeights weights;
  Tensor x, dy;  // [T, D]

  DType dtype() const { return x.dtype(); }
  Index tokens() const { return x.dim(0); }
  // Terms in the sums of a forward pass, and of a backward pass.
  Index forward_length() const { return config.hidden_size + config.expert_size + config.routed_experts; }
  Index backward_length() const { return tokens() + config.expert_size + forward_length(); }
  LayerLimits limits(DType gradients = DType::kF32) const {
    return layer_limits(dtype(), {tokens(), config.hidden_size, config.expert_size, config.routed_experts}, gradients);
  }
};

// Whether no token's choice is so close that rounding could change it: the scores that it chooses by differ, down to the
// best one that is not chosen, by more than sums of D terms in another order can.
inline bool clear_choice(const Inputs& in) {
  const MoeConfig& c = in.config;
  if (c.groups > 1) return true;  // few tokens have groups here
  Context ref(1, Backend::kRef);
  const Tensor scores =
      ops::gate(ref, c, in.x, in.weights.gate, in.weights.gate_bias, c.shared_experts, false).chosen.scores;
  const double least = 2 * limit(DType::kF32, c.hidden_size);
  const auto count = static_cast<std::size_t>(std::min(c.experts_per_token + 1, c.routed_experts));
  std::vector<double> choice(static_cast<std::size_t>(c.routed_experts));
  for (Index t = 0; t < in.tokens(); ++t) {
    for (std::size_t e = 0; e < choice.size(); ++e)
      choice[e] = value(scores, t * c.routed_experts + static_cast<Index>(e)) +
                  (c.selection_bias ? value(in.weights.gate_bias, static_cast<Index>(e)) : 0);
    std::partial_sort(choice.begin(), choice.begin() + static_cast<std::ptrdiff_t>(count), choice.end(),
                      std::greater<double>());
    for (std::size_t k = 0; k + 1 < count; ++k)
      if (choice[k] - choice[k + 1] <= least * std::abs(choice[k])) return false;
  }
  return true;
}

inline Inputs random_inputs(const Case& c, DType dtype, std::uint64_t seed) {
  const float wd = 1 / std::sqrt(static_cast<float>(c.d)), wf = 1 / std::sqrt(static_cast<float>(c.f));
  std::uint64_t next = seed * 100;
  const auto draw = [&](DType type, Shape shape, float scale) { return random_tensor(type, shape, ++next, scale); };
  Inputs in;
  in.config = config_of(c);
  in.sequence = c.sequence;
  in.x = draw(dtype, {c.t, c.d}, 1);
  in.dy = draw(dtype, {c.t, c.d}, 1);
  in.weights.gate = draw(dtype, {c.e, c.d}, 1.5f * wd);
  const Tensor gate_up = draw(dtype, {c.s + c.e, 2, c.f, c.d}, wd), down = draw(dtype, {c.s + c.e, c.d, c.f}, wf);
  in.weights.experts = Experts(gate_up, down);
  if (in.config.selection_bias) {
    in.weights.gate_bias = draw(DType::kF32, {c.e}, 0.1f);
    if (c.hot != 0) {
      in.weights.gate_bias.data<float>()[0] = c.hot;
      in.weights.gate_bias.data<float>()[c.e - 1] = -c.hot;
    }
  }
  if (c.gated) in.weights.shared_gate = draw(dtype, {c.d}, 1.5f * wd);
  while (!clear_choice(in)) in.x = draw(dtype, {c.t, c.d}, 1);
  return in;
}

// All on the CPU.
struct Outputs {
  Tensor y, dx;
  Routing routing;
  BalanceLosses losses;
  MoeGradients grads;
};

// By plain loops, with the same numbers in f32, so that results are not rounded to bf16 on the way.
inline Outputs reference(const Inputs& in) {
  Context ctx(1, Backend::kRef);
  const MoeWeights& w = in.weights;
  const Tensor shared_gate = in.config.shared_gate ? w.shared_gate.to(DType::kF32) : Tensor();
  const MoeLayer layer(in.config, {w.gate.to(DType::kF32), w.gate_bias, w.experts.stack(DType::kF32), shared_gate});
  const MoeForward out = layer.forward(ctx, in.x.to(DType::kF32), {.training = true, .sequence_length = in.sequence});
  Outputs r{out.y, {}, out.routing, fetch_losses(ctx, out), MoeGradients(in.config)};
  r.dx = layer.backward(ctx, in.dy.to(DType::kF32), out, r.grads);
  return r;
}

// The layer of `in` in the GPU's memory.
struct GpuLayer {
  GpuLayer(Context& ctx, const Inputs& in)
      : sequence(in.sequence), layer(in.config, in.weights.to(Device::kCuda)), x(ctx.place(in.x)), dy(ctx.place(in.dy)) {}

  MoeForward forward(Context& ctx, bool training) const {
    return layer.forward(ctx, x, {.training = training, .sequence_length = sequence});
  }

  Index sequence;
  MoeLayer layer;
  Tensor x, dy;
};

// `passes` times forward and backward, the gradients added up.
inline Outputs train_on_gpu(Context& ctx, const Inputs& in, int passes = 1) {
  const GpuLayer gpu(ctx, in);
  MoeGradients grads(in.config, Device::kCuda);
  Outputs r;
  for (int i = 0; i < passes; ++i) {
    const MoeForward out = gpu.forward(ctx, true);
    const Tensor dx = gpu.layer.backward(ctx, gpu.dy, out, grads);
    r = {ctx.fetch(out.y), ctx.fetch(dx), fetch(ctx, out.routing), fetch_losses(ctx, out), {}};
  }
  r.grads = fetch(ctx, grads);
  return r;
}

inline Tensor infer_on_gpu(Context& ctx, const Inputs& in) { return ctx.fetch(GpuLayer(ctx, in).forward(ctx, false).y); }

}  // namespace dsmoe::test
