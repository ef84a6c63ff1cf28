// The same layer on an NVIDIA GPU: weights and tokens are copied to its memory once, and calls launch work without waiting.
// Needs a build with -DDSMOE_CUDA=ON and a GPU; says so otherwise.
#include <dsmoe/error.h>
#include <dsmoe/moe.h>

#include <cstdio>

int main() try {
  dsmoe::MoeConfig config;
  config.hidden_size = 256;
  config.expert_size = 128;
  config.routed_experts = 32;
  config.shared_experts = 2;
  config.experts_per_token = 6;
  config.seq_balance_alpha = 0.001f;

  dsmoe::Context ctx(/*threads=*/1, dsmoe::Backend::kCuda);
  const dsmoe::Device gpu = dsmoe::Device::kCuda;
  const auto weights = dsmoe::MoeWeights::random(config, dsmoe::DType::kBF16, /*seed=*/1);
  dsmoe::MoeLayer layer(config, weights.to(gpu));

  dsmoe::Tensor x(dsmoe::DType::kF32, {2, 64, 256});  // [batch, sequence, hidden]
  for (dsmoe::Index i = 0; i < x.numel(); ++i) x.data<float>()[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
  x = ctx.place(x.to(dsmoe::DType::kBF16));

  dsmoe::MoeGradients grads(config, gpu);
  dsmoe::MoeForward out = layer.forward(ctx, x, {.training = true});
  dsmoe::Tensor dx = layer.backward(ctx, /*dy=*/out.y, out, grads);

  const dsmoe::Tensor y = ctx.fetch(out.y).to(dsmoe::DType::kF32);  // waits; a NaN in the gate is an Error here
  std::printf("y %s, first %.4f, balance loss %.6f\n", y.shape().str().c_str(), static_cast<double>(y.data<float>()[0]),
              dsmoe::fetch_losses(ctx, out).total());
  return dx.numel() == x.numel() ? 0 : 1;
} catch (const dsmoe::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
