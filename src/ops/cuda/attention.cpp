// Attention on a GPU: which kernels run, and the memory they need besides. Nothing here waits for the device.
#include "ops/attention.h"

#include <numbers>

#include "core/fail.h"
#include "core/log.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/linear.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

bool project_and_store(Context& ctx, const Tensor& x, const QkvWeights& w, const RopeAngles& angles, const Slices& slices,
                       Tensor& q, Tensor& k_cache, Tensor& v_cache) {
  using gpu::hopper::project_few;
  const gpu::LinearSizes s{static_cast<int>(x.dim(0)), static_cast<int>(x.dim(1))};
  const Index half = angles.head_dim() / 2;
  bool fits = s.rows > 0 && gpu::linear_tile(s.rows) == gpu::kTinyTile && half % 8 == 0 && x.dtype() == DType::kBF16 &&
              k_cache.dtype() == DType::kBF16;
  for (const Tensor* m : {&w.q, &w.k, &w.v})
    fits = fits && m->dtype() == x.dtype() && m->device() == Device::kCuda &&
           gpu::choose_linear_path(x.dtype(), s.inner, m->dim(0), x.dtype()) == gpu::Path::kHopper;
  if (!fits) return false;
  const auto columns = [](const Tensor& m) { return static_cast<int>(m.dim(0)); };
  const gpu::LinearMatrix qkv[] = {{w.q.raw(), q.raw_mutable(), columns(w.q)},
                                   {w.k.raw(), k_cache.raw_mutable(), columns(w.k)},
                                   {w.v.raw(), v_cache.raw_mutable(), columns(w.v)}};
  log("launch", "project_and_store T={} K={} N={}+{}+{}", s.rows, s.inner, columns(w.q), columns(w.k), columns(w.v));
  project_few(s, static_cast<const __nv_bfloat16*>(x.raw()), qkv,
              {static_cast<const float*>(angles.cos.raw()), static_cast<const float*>(angles.sin.raw()),
               slices.tables().cache_row, static_cast<int>(half)},
              ctx.stream());
  return true;
}

void attention(Context& ctx, const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
               const Slices& slices, Tensor& out, Tensor* lse) {
  const SliceTables& t = slices.tables();
  const Index rows = q.dim(0);
  require(t.rows == rows, "[attention] the slices on the GPU have {} rows, the batch {}", t.rows, rows);
  require(k.dtype() == q.dtype(), "[attention] keys are {} for {} queries; on a GPU they have one dtype",
          to_string(k.dtype()), to_string(q.dtype()));
  if (rows == 0) return;
  const gpu::AttentionKernels use = gpu::attention_kernels(gpu::device_info(), q.dtype(), s.head_dim, gpu::forced_path());
  log("launch", "attention T={} slices={} H={} KVH={} head_dim={} dtype={} mma={} stages={} blocks={} tiles={} merged={}",
      rows, t.slices, s.heads, s.kv_heads, s.head_dim, to_string(q.dtype()), use.mma, use.stages, t.counts.prompt_blocks,
      t.counts.decode_items, t.counts.merge_rows);

  gpu::AttentionArgs args{};
  args.q = q.raw(), args.k = k.raw(), args.v = v.raw();
  args.out = out.raw_mutable();
  args.lse = lse ? static_cast<float*>(lse->raw_mutable()) : nullptr;
  args.heads = static_cast<int>(s.heads), args.kv_heads = static_cast<int>(s.kv_heads);
  args.head_dim = static_cast<int>(s.head_dim), args.rows = static_cast<int>(rows);
  args.scale = s.scale, args.to_log2 = s.scale * std::numbers::log2e_v<float>;
  args.work = t.work;
  if (!use.mma) return gpu::attention_plain(args, t.slices, t.position, q.dtype(), ctx.stream());
  if (t.counts.prompt_blocks > 0) gpu::attention_prompt(args, t.counts.prompt_blocks, use.stages, ctx.stream());
  if (t.counts.decode_items == 0) return;
  Tensor partial = ctx.empty(DType::kF32, {t.partial_rows, s.heads, s.head_dim});
  Tensor weight = ctx.empty(DType::kF32, {t.partial_rows, s.heads, 2});
  const gpu::AttentionPartial to{static_cast<float*>(partial.raw_mutable()), static_cast<float2*>(weight.raw_mutable())};
  gpu::attention_decode(args, t.slices, t.counts.decode_items, t.decode_rows, t.counts.merge_rows, to, ctx.stream());
}

}  // namespace dsmoe::ops::cuda
