// The layer against golden files from PyTorch (tests/moe/golden): outputs, choices, losses and every gradient.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "dsmoe/moe.h"
#include "io/safetensors.h"
#include "support/expert_tensors.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

// Relative, by norm.
struct Limits {
  double output, gradient, gate;  // gate: its gradient
};
constexpr Limits kF32{1e-5, 1e-4, 1e-4};  // what the project promises against the reference

struct Golden {
  io::SafetensorsFile file;
  std::map<std::string, std::string> text;

  explicit Golden(const std::filesystem::path& path) : file(io::SafetensorsFile::open(path)) {
    for (const auto& [key, value] : file.metadata()) text[key] = value;
  }
  Index number(const std::string& key) const { return std::stoll(text.at(key)); }
  float real(const std::string& key) const { return std::stof(text.at(key)); }
  bool flag(const std::string& key) const { return text.at(key) == "true"; }
  Tensor operator()(const std::string& name) const { return file.tensor(name); }

  MoeConfig config() const {
    MoeConfig c;
    c.hidden_size = number("hidden_size"), c.expert_size = number("expert_size");
    c.routed_experts = number("routed_experts"), c.shared_experts = number("shared_experts");
    c.experts_per_token = number("experts_per_token");
    c.score = text.at("score") == "sigmoid" ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
    c.norm_topk_prob = flag("norm_topk_prob"), c.routed_scaling_factor = real("routed_scaling_factor");
    c.selection_bias = flag("selection_bias");
    c.groups = number("groups"), c.groups_per_token = number("groups_per_token");
    c.group_score = text.at("group_score") == "max" ? GroupScore::kMax : GroupScore::kTop2Sum;
    (flag("seq_aux") ? c.seq_balance_alpha : c.batch_balance_alpha) = real("alpha");
    c.device_balance_alpha = real("device_alpha"), c.devices = number("devices");
    return c;
  }

  MoeWeights weights(const MoeConfig& c) const {
    MoeWeights w;
    w.gate = (*this)("gate.weight");
    if (c.selection_bias) w.gate_bias = (*this)("gate.bias");
    const Tensor gate = (*this)("experts.gate_proj"), up = (*this)("experts.up_proj"), down = (*this)("experts.down_proj");
    const auto one = [](const Tensor& t, Index e) { return t.rows(e, e + 1).reshape({t.dim(1), t.dim(2)}); };
    std::vector<ExpertTensors> routed;
    for (Index e = 0; e < c.routed_experts; ++e) routed.push_back({one(gate, e), one(up, e), one(down, e)});
    ExpertTensors shared;
    if (c.shared_experts > 0)
      shared = {(*this)("shared.gate_proj"), (*this)("shared.up_proj"), (*this)("shared.down_proj")};
    w.experts = Experts::listed(c.shared_experts, shared, routed);
    return w;
  }
};

std::vector<std::filesystem::path> files() {
  std::vector<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::directory_iterator(DSMOE_TEST_DATA "/moe/golden"))
    if (entry.path().extension() == ".safetensors") all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

class MoeGolden : public ::testing::TestWithParam<std::filesystem::path> {};

struct Pass {
  MoeConfig config;
  MoeForward out;
  BalanceLosses losses;
  Tensor dx;
  MoeGradients grads;
};

// `prefix`: which of the file's answers.
void compare(const Golden& golden, const std::string& prefix, const Pass& pass, const Limits& limits) {
  SCOPED_TRACE(prefix);
  const auto want = [&](const std::string& name) { return golden(prefix + name); };
  const MoeConfig& c = pass.config;
  EXPECT_TRUE(test::close(pass.out.y, want("y_eval"), limits.output));
  EXPECT_TRUE(test::close(pass.out.y, want("y_train"), limits.output));
  EXPECT_TRUE(test::close(pass.out.routing.weights, want("topk_weight"), limits.output));
  EXPECT_TRUE(test::close(pass.out.routing.scores, want("scores"), limits.output));
  const double aux = test::value(want("aux_loss"), 0);
  EXPECT_NEAR(pass.losses.total(), aux, limits.output * std::abs(aux));
  if (golden.file.contains(prefix + "aux_loss_device")) {
    EXPECT_NEAR(pass.losses.batch, test::value(want("aux_loss_batch"), 0), limits.output * aux);
    EXPECT_NEAR(pass.losses.device, test::value(want("aux_loss_device"), 0), limits.output * aux);
  }
  EXPECT_TRUE(test::close(pass.dx, want("dx"), limits.gradient));
  EXPECT_TRUE(test::close(pass.grads.gate, want("d_gate.weight"), limits.gate));
  const auto stacked = [&](Tensor ExpertTensors::*member, const char* name) {
    const Tensor all = want(name);
    for (Index e = 0; e < c.routed_experts; ++e)
      EXPECT_TRUE(test::close(test::expert_tensors(pass.grads.experts, c.shared_experts + e).*member, all.rows(e, e + 1),
                              limits.gradient))
          << name << " of expert " << e;
  };
  stacked(&ExpertTensors::gate_proj, "d_experts.gate_proj");
  stacked(&ExpertTensors::up_proj, "d_experts.up_proj");
  stacked(&ExpertTensors::down_proj, "d_experts.down_proj");
  if (c.shared_experts > 0) {
    const ExpertTensors shared = test::wide_mlp(pass.grads.experts, c.shared_experts);
    EXPECT_TRUE(test::close(shared.gate_proj, want("d_shared.gate_proj"), limits.gradient));
    EXPECT_TRUE(test::close(shared.up_proj, want("d_shared.up_proj"), limits.gradient));
    EXPECT_TRUE(test::close(shared.down_proj, want("d_shared.down_proj"), limits.gradient));
  }
}

// PyTorch in bf16 stores every step: the gate's logits and scores, gate, up, SiLU, their product, down, its product with
// the weight, the sum, and y with the shared experts; backward as many again.
Limits reference_in_bf16(const test::LayerLimits& ours, Index length) {
  constexpr int kSteps = 10;
  return {test::chain_limit(DType::kBF16, kSteps, length), test::chain_limit(DType::kBF16, 2 * kSteps, length),
          ours.gate / ours.experts * test::chain_limit(DType::kBF16, 2 * kSteps, length)};
}

void check(Backend backend, const std::filesystem::path& path) {
  const Golden golden(path);
  const MoeConfig c = golden.config();
  Context ctx(2, backend);
  const MoeLayer layer(c, golden.weights(c));
  const Tensor x = golden("x");

  const MoeForward eval = layer.forward(ctx, x);
  EXPECT_EQ(fetch_losses(ctx, eval).total(), 0);
  Pass pass{c, layer.forward(ctx, x, {.training = true}), {}, {}, MoeGradients(c)};
  EXPECT_TRUE(test::same_bits(pass.out.y, eval.y)) << "training and inference must run the same forward";
  EXPECT_TRUE(test::same_bits(pass.out.routing.experts, golden("topk_idx")));
  pass.losses = fetch_losses(ctx, pass.out);
  pass.dx = layer.backward(ctx, golden("dy"), pass.out, pass.grads);

  if (x.dtype() == DType::kF32) return compare(golden, "", pass, kF32);
  const test::LayerLimits ours =
      test::layer_limits(x.dtype(), {x.numel() / c.hidden_size, c.hidden_size, c.expert_size, c.routed_experts});
  compare(golden, "", pass, reference_in_bf16(ours, c.hidden_size + 2 * c.expert_size));
  compare(golden, "exact.", pass, {ours.y, std::max(ours.dx, ours.experts), ours.gate});
}

TEST_P(MoeGolden, Cpu) { check(Backend::kCpu, GetParam()); }
TEST_P(MoeGolden, Ref) { check(Backend::kRef, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Files, MoeGolden, ::testing::ValuesIn(files()),
                         [](const auto& file) { return file.param.stem().string(); });

TEST(MoeGoldenFiles, AreThere) { EXPECT_GE(files().size(), 17u); }

}  // namespace
}  // namespace dsmoe
