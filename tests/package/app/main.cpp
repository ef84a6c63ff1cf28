// A foreign program with one layer in it, and a whole model.
#include <dsmoe/error.h>
#include <dsmoe/moe.h>
#include <dsmoe/session.h>
#include <dsmoe/trainer.h>

#include <cmath>
#include <cstdio>

int main() {
  dsmoe::MoeConfig config;
  config.hidden_size = 32;
  config.expert_size = 16;
  config.routed_experts = 8;
  config.shared_experts = 1;
  config.experts_per_token = 2;
  const dsmoe::MoeLayer layer(config, dsmoe::MoeWeights::random(config, dsmoe::DType::kF32, /*seed=*/1));

  dsmoe::Context ctx(2);
  dsmoe::Tensor x(dsmoe::DType::kF32, {4, 32});
  for (float& v : x.span<float>()) v = 1;
  const dsmoe::MoeForward out = layer.forward(ctx, x);

  float norm = 0;
  for (const float v : out.y.span<float>()) norm += v * v;
  std::printf("y %s, norm %g\n", out.y.shape().str().c_str(), static_cast<double>(norm));
  dsmoe::Session session(dsmoe::Model::random(dsmoe::ModelConfig::preset("tiny"), /*seed=*/1));
  const std::size_t generated = session.generate(std::vector<std::int32_t>{1, 2, 3}, {.max_tokens = 4}).ids.size();
  dsmoe::train::TrainOptions().validate();
  std::printf("%zu tokens\n", generated);
  try {  // errors cross the library's border as exceptions
    config.experts_per_token = 9;
    config.validate();
    return 1;
  } catch (const dsmoe::Error& error) {
    std::printf("%s\n", error.what());
  }
  return std::isfinite(norm) && norm > 0 ? 0 : 1;
}
