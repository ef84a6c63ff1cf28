// The backward of attention on a GPU: which kernels run, and the memory they need besides. Nothing here waits for the
// device.
#include "core/fail.h"
#include "core/log.h"
#include "ops/attention.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/heuristics.h"
#include "ops/elementwise.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

void attention_backward(Context& ctx, const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Slices& slices, const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq,
                        Tensor& dk, Tensor& dv, const RopeAngles* turned) {
  const SliceTables& t = slices.tables();
  const Index rows = q.dim(0);
  require(t.rows == rows, "[attention_backward] the slices on the GPU have {} rows, the batch {}", t.rows, rows);
  if (rows == 0) return;
  const bool hopper = gpu::attention_backward_on_hopper(gpu::device_info(), q.dtype(), s.head_dim, gpu::forced_path());
  if (!hopper && dq.dtype() != DType::kF32) {
    Tensor wide[3];
    Tensor* const to[] = {&dq, &dk, &dv};
    for (int i = 0; i < 3; ++i) wide[i] = ctx.empty(DType::kF32, to[i]->shape());
    cuda::attention_backward(ctx, s, q, k, v, slices, out, lse, dout, wide[0], wide[1], wide[2], turned);
    for (int i = 0; i < 3; ++i) cuda::convert(ctx, wide[i], *to[i]);
    return;
  }
  gpu::AttentionGradArgs args{};
  args.q = q.raw(), args.k = k.raw(), args.v = v.raw(), args.out = out.raw(), args.dout = dout.raw();
  args.lse = static_cast<const float*>(lse.raw());
  args.dq = dq.raw_mutable(), args.dk = dk.raw_mutable(), args.dv = dv.raw_mutable();
  args.rounded = dq.dtype() != DType::kF32;
  if (hopper && turned) {
    args.cos = static_cast<const float*>(turned->cos.raw());
    args.sin = static_cast<const float*>(turned->sin.raw());
  }
  args.heads = static_cast<int>(s.heads), args.kv_heads = static_cast<int>(s.kv_heads);
  args.head_dim = static_cast<int>(s.head_dim), args.rows = static_cast<int>(rows);
  args.scale = s.scale;
  args.work = t.grad;
  gpu::AttentionGradMemory memory{};
  const std::size_t ds_bytes = memory.ds_bytes(args);
  memory.kv_heads = gpu::grad_heads(ds_bytes, s.kv_heads);
  log("launch", "attention_backward T={} slices={} H={} KVH={} head_dim={} dtype={} hopper={} heads at a time={}", rows,
      t.slices, s.heads, s.kv_heads, s.head_dim, to_string(q.dtype()), hopper, memory.kv_heads);
  const auto room = [&](DType dtype, std::size_t numbers) { return ctx.empty(dtype, {static_cast<Index>(numbers)}); };
  if (!hopper) {
    Tensor delta = ctx.empty(DType::kF32, {s.heads, rows});
    gpu::attention_backward_plain(args, static_cast<float*>(delta.raw_mutable()), q.dtype(), ctx.stream());
    if (turned)
      for (Tensor* const grad : {&dq, &dk}) cuda::apply_rope(ctx, *grad, *turned, /*inverse=*/true);
    return;
  }
  Tensor stats = room(DType::kF32, memory.stat_numbers(args));
  Tensor ds = room(DType::kBF16, ds_bytes / 2 * static_cast<std::size_t>(memory.kv_heads));
  Tensor counters = room(DType::kI32, 2 * static_cast<std::size_t>(memory.launches(args)));
  memory.stats = static_cast<float*>(stats.raw_mutable()), memory.ds = ds.raw_mutable();
  memory.counters = static_cast<int*>(counters.raw_mutable());
  gpu::attention_backward_hopper(args, memory, ctx.stream());
}

}  // namespace dsmoe::ops::cuda
