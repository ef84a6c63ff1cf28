// One random layer with its inputs, and what the layer makes of them: by the plain loops of ops/ref, or on the GPU.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "dsmoe/moe.h"

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
  float hot = 0;  // the first expert's bias, and minus that of the last: all tokens choose the one, none the other
};

inline MoeConfig config_of(const Case& c) {
  MoeConfig m;
  m.hidden_size = c.d;
  m.expert_size = c.f;
  m.routed_experts = c.e;
  m.shared_experts = c.s;
  m.experts_per_token = c.k;
  m.score = c.score;
  m.norm_topk_prob = c.norm;
  m.routed_scaling_factor = c.scale;
  m.selection_bias = c.bias || c.hot != 0;
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
};

inline Tensor random_tensor(DType dtype, Shape shape, float deviation, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, deviation);
  Tensor t(DType::kF32, shape);
  for (float& v : t.span<float>()) v = normal(random);
  return t.to(dtype);
}

inline Inputs random_inputs(const Case& c, DType dtype, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const float wd = 1 / std::sqrt(static_cast<float>(c.d)), wf = 1 / std::sqrt(static_cast<float>(c.f));
  Inputs in;
  in.config = config_of(c);
  in.sequence = c.sequence;
  in.x = random_tensor(dtype, {c.t, c.d}, 1, random);
  in.dy = random_tensor(dtype, {c.t, c.d}, 1, random);
  in.weights.gate = random_tensor(dtype, {c.e, c.d}, 1.5f * wd, random);
  if (in.config.selection_bias) {
    in.weights.gate_bias = random_tensor(DType::kF32, {c.e}, 0.1f, random);
    if (c.hot != 0) {
      in.weights.gate_bias.data<float>()[0] = c.hot;
      in.weights.gate_bias.data<float>()[c.e - 1] = -c.hot;
    }
  }
  const auto expert = [&](Index width) {
    return ExpertTensors{random_tensor(dtype, {width, c.d}, wd, random), random_tensor(dtype, {width, c.d}, wd, random),
                         random_tensor(dtype, {c.d, width}, wf, random)};
  };
  for (Index e = 0; e < c.e; ++e) in.weights.routed.push_back(expert(c.f));
  if (c.s > 0) in.weights.shared = expert(c.s * c.f);
  return in;
}

// All on the CPU.
struct Outputs {
  Tensor y, dx;
  Routing routing;
  BalanceLosses losses;
  MoeGradients grads;
};

// The same numbers in f32, so that the reference's results are not rounded to bf16 on the way.
inline MoeWeights as_f32(const MoeWeights& w) {
  MoeWeights out = w;
  const auto widen = [](ExpertTensors& e) {
    for (Tensor* t : {&e.gate_proj, &e.up_proj, &e.down_proj}) *t = t->to(DType::kF32);
  };
  out.gate = w.gate.to(DType::kF32);
  for (ExpertTensors& e : out.routed) widen(e);
  widen(out.shared);
  return out;
}

inline Outputs reference(const Inputs& in) {
  Context ctx(1, Backend::kRef);
  const MoeLayer layer(in.config, as_f32(in.weights));
  const MoeForward out = layer.forward(ctx, in.x.to(DType::kF32), {.training = true, .sequence_length = in.sequence});
  Outputs r{out.y, {}, out.routing, out.losses, MoeGradients(in.config)};
  r.dx = layer.backward(ctx, in.dy.to(DType::kF32), out, r.grads);
  return r;
}

// The layer of `in` in the GPU's memory.
struct GpuLayer {
  explicit GpuLayer(const Inputs& in)
      : config(in.config),
        sequence(in.sequence),
        layer(in.config, in.weights.to(in.config, Device::kCuda)),
        x(in.x.to(Device::kCuda)),
        dy(in.dy.to(Device::kCuda)) {}

  MoeForward forward(Context& ctx, bool training) const {
    return layer.forward(ctx, x, {.training = training, .sequence_length = sequence});
  }

  MoeConfig config;
  Index sequence;
  MoeLayer layer;
  Tensor x, dy;
};

inline Routing to_cpu(const Routing& r) {
  return {r.experts.to(Device::kCpu), r.weights.to(Device::kCpu), r.scores.to(Device::kCpu)};
}

// `passes` times forward and backward, the gradients added up.
inline Outputs train_on_gpu(Context& ctx, const Inputs& in, int passes = 1) {
  const GpuLayer gpu(in);
  MoeGradients grads(in.config, Device::kCuda);
  Outputs r;
  for (int i = 0; i < passes; ++i) {
    MoeForward out = gpu.forward(ctx, true);
    const Tensor dx = gpu.layer.backward(ctx, gpu.dy, out, grads);
    gpu.layer.finish(ctx, out);
    r.y = out.y.to(Device::kCpu);
    r.dx = dx.to(Device::kCpu);
    r.routing = to_cpu(out.routing);
    r.losses = out.losses;
  }
  r.grads = grads.to(in.config, Device::kCpu);
  return r;
}

inline Tensor infer_on_gpu(Context& ctx, const Inputs& in) {
  const GpuLayer gpu(in);
  MoeForward out = gpu.forward(ctx, false);
  gpu.layer.finish(ctx, out);
  return out.y.to(Device::kCpu);
}

}  // namespace dsmoe::test
