// One DeepSeekMoE layer in a program of your own: forward, backward, and what the router did.
#include <dsmoe/moe.h>
#include <dsmoe/moe_statistics.h>

#include <cstdio>

int main() {
  dsmoe::MoeConfig config;
  config.hidden_size = 256;
  config.expert_size = 128;
  config.routed_experts = 32;
  config.shared_experts = 2;
  config.experts_per_token = 6;
  config.seq_balance_alpha = 0.001f;

  dsmoe::Context ctx;  // all cores
  dsmoe::MoeLayer layer(config, dsmoe::MoeWeights::random(config, dsmoe::DType::kF32, /*seed=*/1));

  dsmoe::Tensor x(dsmoe::DType::kF32, {2, 64, 256});  // [batch, sequence, hidden]
  for (dsmoe::Index i = 0; i < x.numel(); ++i) x.data<float>()[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;

  dsmoe::MoeForward out = layer.forward(ctx, x, {.training = true});
  dsmoe::MoeGradients grads(config);
  dsmoe::Tensor dx = layer.backward(ctx, /*dy=*/out.y, out, grads);

  dsmoe::RoutingStatistics stats(config.routed_experts);
  stats.add(out.routing);
  std::printf("y %s, balance loss %.6f, busiest expert %.2f times the mean, %zu unused\n", out.y.shape().str().c_str(),
              dsmoe::fetch_losses(ctx, out).total(), stats.imbalance(), stats.unused().size());
  return dx.numel() == x.numel() ? 0 : 1;
}
