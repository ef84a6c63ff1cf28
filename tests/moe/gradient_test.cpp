// Finite differences through the whole layer with the routing frozen: top-K is not smooth, so every step checks
// that the chosen experts stay the same.
#include <gtest/gtest.h>

#include "dsmoe/moe.h"
#include "support/expert_tensors.h"
#include "support/moe_case.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::random_tensor;

struct Objective {
  const MoeConfig& c;
  MoeWeights& w;
  Tensor& x;
  const Tensor& dy;
  Tensor experts;

  double operator()() {
    Context ctx(1, Backend::kRef);
    const MoeForward out = MoeLayer(c, w).forward(ctx, x, {.training = true});
    EXPECT_TRUE(test::same_bits(out.routing.experts, experts)) << "the routing moved; choose another seed";
    double sum = fetch_losses(ctx, out).total();
    for (Index i = 0; i < dy.numel(); ++i) sum += test::value(out.y, i) * test::value(dy, i);
    return sum;
  }

  // Numeric gradient in up to 25 evenly spread entries of t, against `got`.
  void check(Tensor& t, const Tensor& got, const char* name) {
    const Index step = std::max<Index>(1, t.numel() / 25);
    const Index n = (t.numel() + step - 1) / step;
    Tensor numeric(DType::kF32, {n}), exact(DType::kF32, {n});
    for (Index j = 0; j < n; ++j) {
      constexpr float kStep = 4e-3f;
      float& v = t.data<float>()[j * step];
      const float at = v;
      v = at + kStep;
      const double up = (*this)();
      v = at - kStep;
      const double down = (*this)();
      v = at;
      numeric.data<float>()[j] = static_cast<float>((up - down) / (2.0 * kStep));
      exact.data<float>()[j] = got.data<float>()[j * step];
    }
    // f32 outputs rounded at 2^-24 over the step, and step² of the third derivative: 1e-3 holds both.
    EXPECT_TRUE(test::close(exact, numeric, 1e-3)) << name;
  }
};

void check_all(MoeConfig c, std::uint64_t seed) {
  MoeWeights w = test::moe_weights(c, DType::kF32, seed);
  Tensor x = random_tensor(DType::kF32, {2, 3, c.hidden_size}, seed + 1);
  const Tensor dy = random_tensor(DType::kF32, {2, 3, c.hidden_size}, seed + 2);
  Context ctx(2);
  const MoeForward out = MoeLayer(c, w).forward(ctx, x, {.training = true});
  Objective objective{c, w, x, dy, out.routing.experts};
  MoeGradients grads(c);
  const Tensor dx = MoeLayer(c, w).backward(ctx, dy, out, grads);
  objective.check(x, dx, "x");
  objective.check(w.gate, grads.gate, "gate");
  if (c.shared_gate) objective.check(w.shared_gate, grads.shared_gate, "shared gate");
  const auto check = [&](Index expert, const std::string& name) {
    ExpertTensors weight = test::expert_tensors(w.experts, expert);
    const ExpertTensors gradient = test::expert_tensors(grads.experts, expert);
    objective.check(weight.gate_proj, gradient.gate_proj, (name + "gate_proj").c_str());
    objective.check(weight.up_proj, gradient.up_proj, (name + "up_proj").c_str());
    objective.check(weight.down_proj, gradient.down_proj, (name + "down_proj").c_str());
  };
  check(c.shared_experts + objective.experts.data<std::int32_t>()[0], "routed ");
  if (c.shared_experts > 0) check(c.shared_experts - 1, "shared ");
}

TEST(MoeGradient, SoftmaxWithAllLosses) {
  MoeConfig c = test::moe_config(6, 4, 4, 2, 2);
  c.seq_balance_alpha = 0.7f, c.batch_balance_alpha = 0.9f, c.device_balance_alpha = 1.1f, c.devices = 2;
  check_all(c, 3);
}

TEST(MoeGradient, NormalisedAndScaled) {
  MoeConfig c = test::moe_config(6, 4, 5, 3, 0);
  c.norm_topk_prob = true, c.routed_scaling_factor = 2.5f;
  check_all(c, 13);
}

TEST(MoeGradient, SharedExpertsBehindAGate) {
  MoeConfig c = test::moe_config(6, 4, 4, 2, 3);
  c.shared_gate = true;
  check_all(c, 37);
}

TEST(MoeGradient, SigmoidWithBiasAndBalanceLoss) {
  MoeConfig c = test::moe_config(6, 4, 4, 2, 1);
  c.score = ScoreFunction::kSigmoid, c.selection_bias = true, c.norm_topk_prob = true;
  c.seq_balance_alpha = 0.7f, c.batch_balance_alpha = 0.9f;
  check_all(c, 7);
}

}  // namespace
}  // namespace dsmoe
