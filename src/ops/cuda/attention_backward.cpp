// The backward of attention on a GPU: which kernels run, and the memory they need besides. Nothing here waits for the
// device.
#include "core/fail.h"
#include "core/log.h"
#include "ops/attention.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/heuristics.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

void attention_backward(Context& ctx, const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Slices& slices, const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq,
                        Tensor& dk, Tensor& dv) {
  const SliceTables& t = slices.tables();
  const Index rows = q.dim(0);
  require(t.rows == rows, "[attention_backward] the slices on the GPU have {} rows, the batch {}", t.rows, rows);
  if (rows == 0) return;
  gpu::AttentionGradArgs args{};
  args.q = q.raw(), args.k = k.raw(), args.v = v.raw(), args.out = out.raw(), args.dout = dout.raw();
  args.lse = static_cast<const float*>(lse.raw());
  args.dq = static_cast<float*>(dq.raw_mutable());
  args.dk = static_cast<float*>(dk.raw_mutable()), args.dv = static_cast<float*>(dv.raw_mutable());
  args.heads = static_cast<int>(s.heads), args.kv_heads = static_cast<int>(s.kv_heads);
  args.head_dim = static_cast<int>(s.head_dim), args.rows = static_cast<int>(rows);
  args.scale = s.scale;
  args.work = t.grad;
  log("launch", "attention_backward T={} slices={} H={} KVH={} head_dim={} dtype={}", rows, t.slices, s.heads, s.kv_heads,
      s.head_dim, to_string(q.dtype()));
  Tensor delta = ctx.empty(DType::kF32, {s.heads, rows});
  gpu::attention_backward_plain(args, static_cast<float*>(delta.raw_mutable()), q.dtype(), ctx.stream());
}

}  // namespace dsmoe::ops::cuda
