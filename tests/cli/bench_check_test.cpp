// The check that `dsmoe bench layer` makes before it reports a speed: it must see one wrong number anywhere.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "cli/bench_layer.h"
#include "support/expect_error.h"

namespace dsmoe::cli {
namespace {

class BenchCheck : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    o_.config.hidden_size = 32, o_.config.expert_size = 16, o_.config.routed_experts = 8;
    o_.config.experts_per_token = 2, o_.config.shared_experts = 1;
    o_.dtype_name = GetParam();
    o_.backward = true;
  }
  LayerOutputs outputs() {
    const MoeLayer layer = make_layer(ctx_, o_);
    const Tensor x = make_tokens(ctx_, o_, layer, kCheckTokens, kCheckStream);
    return reference(layer, x, uniform(ctx_, o_.activations(), x.shape(), 1.0f, kGradStream), true);
  }
  double check(const LayerOutputs& got, const LayerOutputs& want) {
    return require_close(ctx_, o_, {.backward = true}, kCheckTokens, got, want);
  }

  Context ctx_{2};
  LayerOptions o_;
};

TEST_P(BenchCheck, SeesAWrongNumberAnywhere) {
  const LayerOutputs want = outputs();
  EXPECT_EQ(check(want, want), 0);
  struct Place {
    const char* word;
    std::function<Tensor&(LayerOutputs&)> tensor;
  };
  const Place places[] = {{"output", [](LayerOutputs& r) -> Tensor& { return r.y; }},
                          {"input", [](LayerOutputs& r) -> Tensor& { return r.dx; }},
                          {"gate", [](LayerOutputs& r) -> Tensor& { return r.grads.gate; }},
                          {"expert", [](LayerOutputs& r) -> Tensor& { return r.grads.experts.gate_up(); }},
                          {"expert", [](LayerOutputs& r) -> Tensor& { return r.grads.experts.down(); }}};
  for (const Place& place : places)
    for (const float wrong : {NAN, INFINITY, 1e3f}) {
      LayerOutputs got = outputs();
      Tensor& t = place.tensor(got);
      Tensor f32 = t.to(DType::kF32).clone();
      f32.data<float>()[t.numel() - 1] = wrong;
      t = f32.to(t.dtype());
      EXPECT_TRUE(testing::throws_error([&] { check(got, want); }, {place.word, "no speed"})) << wrong;
    }
}

INSTANTIATE_TEST_SUITE_P(Types, BenchCheck, ::testing::Values("f32", "bf16"), [](const auto& type) { return type.param; });

}  // namespace
}  // namespace dsmoe::cli
