// Attention on a GPU: which kernels run, and the memory they need besides. Nothing here waits for the device.
#include "ops/attention.h"

#include <array>
#include <numbers>

#include "core/fail.h"
#include "core/log.h"
#include "ops/cuda/add_norm.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/latent.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/packed.h"
#include "ops/pack.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

// Whether one kernel projects, turns and stores rows of `dtype`.
bool projects_in_one(const gpu::LinearSizes& s, DType dtype, const QkvWeights& w, const RopeAngles& angles,
                     const Tensor& k_cache, bool packed) {
  const Index together = s.rows <= gpu::kTinyTile ? 8 : 32;  // numbers of a half of a head
  if (s.rows == 0 || angles.head_dim() / 2 % together != 0 || dtype != DType::kBF16 || k_cache.dtype() != DType::kBF16)
    return false;
  for (const Tensor* m : {&w.q, &w.k, &w.v})
    if (m->device() != Device::kCuda || (!packed && m->dtype() != dtype) ||
        gpu::choose_linear_path(dtype, s.inner, m->dim(0), dtype) != gpu::Path::kHopper)
      return false;
  return true;
}

gpu::hopper::TurnAndStore turn_of(const RopeAngles& angles, const Slices& slices) {
  return {static_cast<const float*>(angles.cos.raw()), static_cast<const float*>(angles.sin.raw()),
          slices.tables().cache_row, static_cast<int>(angles.head_dim() / 2)};
}

using Matrices = std::array<gpu::LinearMatrix, 3>;
Matrices matrices_of(const QkvWeights& w, Tensor& q, Tensor& k_cache, Tensor& v_cache) {
  const auto matrix = [](const Tensor& m, Tensor& y) {
    return gpu::LinearMatrix{m.raw(), y.raw_mutable(), static_cast<int>(m.dim(0))};
  };
  return {matrix(w.q, q), matrix(w.k, k_cache), matrix(w.v, v_cache)};
}

}  // namespace

bool project_and_store(Context& ctx, const Tensor& x, const QkvWeights& w, const RopeAngles& angles, const Slices& slices,
                       Tensor& q, Tensor& k_cache, Tensor& v_cache) {
  const gpu::LinearSizes s{static_cast<int>(x.dim(0)), static_cast<int>(x.dim(1))};
  const bool few = s.rows <= gpu::kTinyTile;
  const bool packed = is_quantized(w.q.dtype()) && is_quantized(w.k.dtype()) && is_quantized(w.v.dtype());
  if (!projects_in_one(s, x.dtype(), w, angles, k_cache, packed)) return false;
  const auto* const rows = static_cast<const __nv_bfloat16*>(x.raw());
  const gpu::hopper::TurnAndStore turn = turn_of(angles, slices);
  log("launch", "project_and_store T={} K={} N={}+{}+{} packed={}", s.rows, s.inner, w.q.dim(0), w.k.dim(0), w.v.dim(0),
      packed);
  if (packed && few) {
    using gpu::packed::matrix_of;
    const gpu::packed::Product qkv[] = {{matrix_of(w.q), q.raw_mutable(), false},
                                        {matrix_of(w.k), k_cache.raw_mutable(), false},
                                        {matrix_of(w.v), v_cache.raw_mutable(), false}};
    return gpu::packed::project_few(s, rows, qkv, turn, ctx.stream());
  }
  const auto as_bf16 = [&](const Tensor& m) { return packed ? unpacked(ctx, m) : m; };
  const Tensor wq = as_bf16(w.q), wk = as_bf16(w.k), wv = as_bf16(w.v);
  const Matrices qkv = matrices_of({wq, wk, wv}, q, k_cache, v_cache);
  few ? gpu::hopper::project_few(s, rows, qkv, turn, ctx.stream()) : gpu::hopper::project(s, rows, qkv, turn, ctx.stream());
  return true;
}

bool project_and_store(Context& ctx, const AddNorm& in, const QkvWeights& w, const RopeAngles& angles, const Slices& slices,
                       Tensor& q, Tensor& k_cache, Tensor& v_cache) {
  const gpu::LinearSizes s{static_cast<int>(in.x.dim(0)), static_cast<int>(in.x.dim(1))};
  if (s.rows != 1 || in.y.numel() == 0 || in.y.dtype() != DType::kBF16 || in.weight.dtype() != DType::kBF16 ||
      !gpu::norms_rows_of(s.inner) || !projects_in_one(s, in.dtype, w, angles, k_cache, /*packed=*/false))
    return false;
  log("launch", "project_and_store T=1 K={} N={}+{}+{} normed", s.inner, w.q.dim(0), w.k.dim(0), w.v.dim(0));
  Tensor sum = ctx.empty(DType::kF32, in.x.shape());
  gpu::hopper::project_few(s, gpu::add_norm_row<__nv_bfloat16>(in, sum), matrices_of(w, q, k_cache, v_cache),
                           turn_of(angles, slices), ctx.stream());
  in.x = sum;
  return true;
}

namespace {

// Whether the keys and values of every slice are rows of the batch itself, as in training.
bool whole_sequences(const Slices& slices, Index rows, Index keys) {
  if (rows != keys) return false;
  for (const Slice& s : slices) {
    if (s.first_position > 0) return false;
    for (Index i = 0; i < Slice::tiles_of(s.rows); ++i)
      if (s.tiles[static_cast<std::size_t>(i)] != s.first_row + i * kAttentionTile) return false;
  }
  return true;
}

// Whether the kernels for latents take it.
bool over_latents(const AttentionShape& s, const Tensor& q, const Tensor& k) {
  return s.values == gpu::kLatentValues && s.head_dim == gpu::kLatentKeys && s.kv_heads == 1 && s.heads <= kDoneCounters &&
         q.dtype() == DType::kBF16 && k.dtype() == DType::kBF16 && gpu::device_info().major == 9 &&
         gpu::forced_path() != gpu::Path::kPlain;
}

void attention_over_latents(Context& ctx, const gpu::AttentionArgs& args, Index keys, const SliceTables& t) {
  const int blocks = t.counts.prompt_blocks;
  log("launch", "attention T={} slices={} H={} latents blocks={} runs={} of={}", args.rows, t.slices, args.heads, blocks,
      t.counts.decode_items, t.counts.run);
  if (blocks > 0 && gpu::forced_path() == gpu::Path::kMma)
    gpu::latent_prompt_mma(args, keys, blocks, ctx.stream());
  else if (blocks > 0)
    gpu::latent_prompt(args, keys, blocks, ctx.stream());
  if (t.counts.decode_items == 0) return;
  Tensor partial = ctx.empty(DType::kF32, {t.partial_rows, args.heads, gpu::kLatentValues});
  Tensor weight = ctx.empty(DType::kF32, {t.partial_rows, args.heads, 2});
  const gpu::AttentionPartial to{static_cast<float*>(partial.raw_mutable()), static_cast<float2*>(weight.raw_mutable())};
  gpu::latent_decode(args, keys, t.counts.decode_items, t.decode_rows, to, ctx.stream());
}

}  // namespace

void attention(Context& ctx, const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
               const Slices& slices, Tensor& out, Tensor* lse) {
  const SliceTables& t = slices.tables();
  const Index rows = q.dim(0);
  require(t.rows == rows, "[attention] the slices on the GPU have {} rows, the batch {}", t.rows, rows);
  if (rows == 0) return;
  const bool latents = over_latents(s, q, k);
  gpu::AttentionKernels use = gpu::attention_kernels(gpu::device_info(), q.dtype(), s.head_dim, gpu::forced_path());
  if (s.heads > kDoneCounters) use = {};
  if (!latents)
    log("launch",
        "attention T={} slices={} H={} KVH={} head_dim={} dtype={} stored={} mma={} stages={} blocks={} runs={} of={}",
        rows, t.slices, s.heads, s.kv_heads, s.head_dim, to_string(q.dtype()), to_string(k.dtype()), use.mma, use.stages,
        t.counts.prompt_blocks, t.counts.decode_items, t.counts.run);

  gpu::AttentionArgs args{};
  args.q = q.raw(), args.k = k.raw(), args.v = v.raw(), args.stored = k.dtype();
  args.out = out.raw_mutable();
  args.lse = lse ? static_cast<float*>(lse->raw_mutable()) : nullptr;
  args.heads = static_cast<int>(s.heads), args.kv_heads = static_cast<int>(s.kv_heads);
  args.head_dim = static_cast<int>(s.head_dim), args.rows = static_cast<int>(rows);
  args.scale = s.scale, args.to_log2 = s.scale * std::numbers::log2e_v<float>;
  args.work = t.work;
  if (latents) return attention_over_latents(ctx, args, k.dim(0), t);
  if (!use.mma) return gpu::attention_plain(args, t.slices, t.position, q.dtype(), ctx.stream());
  const bool hopper =
      lse && gpu::attention_backward_on_hopper(gpu::device_info(), q.dtype(), s.head_dim, gpu::forced_path());
  if (t.counts.prompt_blocks > 0 && hopper && whole_sequences(slices, rows, k.dim(0)))
    gpu::attention_forward_hopper(args, t.counts.prompt_blocks, ctx.stream());
  else if (t.counts.prompt_blocks > 0)
    gpu::attention_prompt(args, t.counts.prompt_blocks, use.stages, ctx.stream());
  if (t.counts.decode_items == 0) return;
  Tensor partial = ctx.empty(DType::kF32, {t.partial_rows, s.heads, s.head_dim});
  Tensor weight = ctx.empty(DType::kF32, {t.partial_rows, s.heads, 2});
  const gpu::AttentionPartial to{static_cast<float*>(partial.raw_mutable()), static_cast<float2*>(weight.raw_mutable())};
  gpu::attention_decode(args, t.slices, t.counts.decode_items, t.decode_rows, to, ctx.stream());
}

}  // namespace dsmoe::ops::cuda
