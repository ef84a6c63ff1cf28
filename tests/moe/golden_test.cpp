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

// What the project promises against the reference in f32 (relative, by norm).
constexpr double kOutputLimit = 1e-5;
constexpr double kGradientLimit = 1e-4;

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

void check(Backend backend, const std::filesystem::path& path) {
  const Golden golden(path);
  const MoeConfig c = golden.config();
  Context ctx(2, backend);
  const MoeLayer layer(c, golden.weights(c));
  const Tensor x = golden("x");

  const MoeForward eval = layer.forward(ctx, x);
  EXPECT_TRUE(test::close(eval.y, golden("y_eval"), kOutputLimit));
  EXPECT_EQ(fetch_losses(ctx, eval).total(), 0);

  const MoeForward out = layer.forward(ctx, x, {.training = true});
  EXPECT_TRUE(test::same_bits(out.y, eval.y)) << "training and inference must run the same forward";
  EXPECT_TRUE(test::close(out.y, golden("y_train"), kOutputLimit));
  EXPECT_TRUE(test::same_bits(out.routing.experts, golden("topk_idx")));
  EXPECT_TRUE(test::close(out.routing.weights, golden("topk_weight"), kOutputLimit));
  EXPECT_TRUE(test::close(out.routing.scores, golden("scores"), kOutputLimit));
  const double aux = test::value(golden("aux_loss"), 0);
  const BalanceLosses losses = fetch_losses(ctx, out);
  EXPECT_NEAR(losses.total(), aux, kOutputLimit * std::abs(aux));
  if (golden.file.contains("aux_loss_device")) {
    EXPECT_NEAR(losses.batch, test::value(golden("aux_loss_batch"), 0), kOutputLimit * aux);
    EXPECT_NEAR(losses.device, test::value(golden("aux_loss_device"), 0), kOutputLimit * aux);
  }

  MoeGradients grads(c);
  const Tensor dx = layer.backward(ctx, golden("dy"), out, grads);
  EXPECT_TRUE(test::close(dx, golden("dx"), kGradientLimit));
  EXPECT_TRUE(test::close(grads.gate, golden("d_gate.weight"), kGradientLimit));
  const auto stacked = [&](Tensor ExpertTensors::*member, const char* name) {
    const Tensor want = golden(name);
    for (Index e = 0; e < c.routed_experts; ++e)
      EXPECT_TRUE(test::close(test::expert_tensors(grads.experts, c.shared_experts + e).*member, want.rows(e, e + 1),
                              kGradientLimit))
          << name << " of expert " << e;
  };
  stacked(&ExpertTensors::gate_proj, "d_experts.gate_proj");
  stacked(&ExpertTensors::up_proj, "d_experts.up_proj");
  stacked(&ExpertTensors::down_proj, "d_experts.down_proj");
  if (c.shared_experts > 0) {
    const ExpertTensors shared = test::wide_mlp(grads.experts, c.shared_experts);
    EXPECT_TRUE(test::close(shared.gate_proj, golden("d_shared.gate_proj"), kGradientLimit));
    EXPECT_TRUE(test::close(shared.up_proj, golden("d_shared.up_proj"), kGradientLimit));
    EXPECT_TRUE(test::close(shared.down_proj, golden("d_shared.down_proj"), kGradientLimit));
  }
}

TEST_P(MoeGolden, Cpu) { check(Backend::kCpu, GetParam()); }
TEST_P(MoeGolden, Ref) { check(Backend::kRef, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Files, MoeGolden, ::testing::ValuesIn(files()),
                         [](const auto& file) { return file.param.stem().string(); });

TEST(MoeGoldenFiles, AreThere) { EXPECT_GE(files().size(), 16u); }

}  // namespace
}  // namespace dsmoe
