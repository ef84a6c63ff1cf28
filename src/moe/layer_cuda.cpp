#include "moe/layer_cuda.h"

#include <cstring>

#include "core/device.h"
#include "core/fail.h"
#include "moe/saved.h"
#include "ops/cuda/moe_layer.h"

namespace dsmoe {

namespace {

constexpr Device kGpu = Device::kCuda;

cuda::Problem problem_of(const MoeConfig& config, const Tensor& x, Index sequence_length) {
  cuda::Problem p;
  p.config = config;
  p.tokens = x.dim(0);
  p.dtype = x.dtype();
  p.grad_dtype = DType::kF32;
  p.sequence_length = sequence_length;
  return p;
}

cuda::Weights weights_of(const MoeWeights& w) {
  return {w.gate.raw(), static_cast<const float*>(w.gate_bias.raw()), w.gate_up.raw(), w.down.raw()};
}

cuda::Routing routing_of(Routing& r, Tensor* status) {
  return {static_cast<std::int32_t*>(r.experts.raw_mutable()), static_cast<float*>(r.weights.raw_mutable()),
          static_cast<float*>(r.scores.raw_mutable()),
          status ? static_cast<std::int32_t*>(status->raw_mutable()) : nullptr};
}

bool has_balance_loss(const MoeConfig& c) {
  return c.seq_balance_alpha != 0 || c.batch_balance_alpha != 0 || c.device_balance_alpha != 0;
}

Tensor bytes_tensor(std::size_t bytes) { return Tensor(DType::kU8, {static_cast<Index>(bytes)}, kGpu); }

}  // namespace

MoeForward cuda_forward(Context& ctx, const MoeConfig& c, const MoeWeights& w, const Tensor& x, const Shape& shape,
                        Index sequence_length, bool training) {
  require(x.dtype() == w.down.dtype(), "x is {}, but the experts are {}", to_string(x.dtype()), to_string(w.down.dtype()));
  const Index tokens = x.dim(0);
  const cuda::Problem p = problem_of(c, x, sequence_length);
  MoeForward out;
  out.y = Tensor(x.dtype(), shape, kGpu);
  out.routing = {Tensor(DType::kI32, {tokens, c.experts_per_token}, kGpu),
                 Tensor(DType::kF32, {tokens, c.experts_per_token}, kGpu),
                 Tensor(DType::kF32, {tokens, c.routed_experts}, kGpu)};
  out.status = Tensor(DType::kI32, {4}, kGpu);
  // Larger than any token's number, and losses that a missing kernel does not leave as they were.
  device::fill_bytes(out.status.raw_mutable(), 0x7f, out.status.bytes(), ctx.stream());

  cuda::Forward f;
  f.weights = weights_of(w);
  f.x = x.raw();
  f.y = out.y.raw_mutable();
  f.routing = routing_of(out.routing, &out.status);
  if (training) {
    auto saved = std::make_shared<MoeForward::Saved>();
    saved->x = x;
    saved->sequence_length = sequence_length;
    saved->gate_up = Tensor(x.dtype(), {tokens * c.slots(), 2 * c.expert_size}, kGpu);
    saved->device_plan = bytes_tensor(cuda::plan_bytes(p));
    f.saved_gate_up = saved->gate_up.raw_mutable();
    f.saved_plan = saved->device_plan.raw_mutable();
    if (has_balance_loss(c)) f.balance_loss = static_cast<float*>(out.status.raw_mutable()) + 1;
    out.saved = std::move(saved);
  }
  f.workspace_bytes = cuda::forward_workspace_bytes(p, training);
  f.workspace = ctx.workspace(f.workspace_bytes);
  cuda::forward(p, f, ctx.stream());
  return out;
}

void cuda_finish(Context& ctx, const MoeConfig& c, MoeForward& forward) {
  ctx.synchronize();
  if (forward.y.numel() == 0) return;
  const Tensor status = forward.status.to(Device::kCpu);
  const std::int32_t bad = status.data<std::int32_t>()[0];
  if (bad < forward.routing.experts.dim(0)) {
    const std::string layer = c.layer_index >= 0 ? fmt::format("layer {}, ", c.layer_index) : "";
    fail(ErrorCode::kNumeric,
         "{}token {}: the gate's scores are NaN or infinite; look for NaN or infinity in this layer's input and gate "
         "weights",
         layer, bad);
  }
  if (!forward.saved || !has_balance_loss(c)) return;
  float losses[3];
  std::memcpy(losses, status.data<std::int32_t>() + 1, sizeof losses);
  forward.losses = {losses[0], losses[1], losses[2]};
}

Tensor cuda_backward(Context& ctx, const MoeConfig& c, const MoeWeights& w, const Tensor& dy, const MoeForward& forward,
                     MoeGradients& grads, float aux_scale) {
  const MoeForward::Saved& saved = *forward.saved;
  require(grads.gate.device() == kGpu, "the gradients are not on the GPU; make them with MoeGradients(config, kCuda)");
  require(!saved.used, "this forward pass already had its backward pass; on a GPU it uses up what forward saved");
  saved.used = true;
  const cuda::Problem p = problem_of(c, saved.x, saved.sequence_length);
  Tensor dx(dy.dtype(), dy.shape(), kGpu);
  Routing routing = forward.routing;
  Tensor gate_up = saved.gate_up;

  cuda::Backward b;
  b.weights = weights_of(w);
  b.x = saved.x.raw();
  b.dy = dy.raw();
  b.routing = routing_of(routing, nullptr);
  b.saved_gate_up = gate_up.raw_mutable();
  b.saved_plan = saved.device_plan.raw();
  b.balance_scale = aux_scale;
  b.accumulate = true;
  b.dx = dx.raw_mutable();
  b.dgate = grads.gate.raw_mutable();
  b.dgate_up = grads.gate_up.raw_mutable();
  b.ddown = grads.down.raw_mutable();
  b.workspace_bytes = cuda::backward_workspace_bytes(p);
  b.workspace = ctx.workspace(b.workspace_bytes);
  cuda::backward(p, b, ctx.stream());
  return dx;
}

}  // namespace dsmoe
