#include "ops/attention.h"

#include <algorithm>

#include "core/fail.h"
#include "ops/backend.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace dsmoe::ops {

namespace {

void check_shape(const char* op, const AttentionShape& s) {
  require(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.head_dim > 0,
          "[{}] {} heads, {} key/value heads, head_dim {}: all must be over 0, and the second must divide the first", op,
          s.heads, s.kv_heads, s.head_dim);
  require(s.scale > 0, "[{}] the scale is {}, expected a number over 0", op, s.scale);
  require(s.values >= 0 && s.values <= s.head_dim, "[{}] {} values of heads of {}", op, s.values, s.head_dim);
}

void check(const char* op, const char* name, const Tensor& x, DType dtype, Index rows, Index columns) {
  require(x.shape() == Shape({rows, columns}) && x.dtype() == dtype, "[{}] {} is {} {}, expected {} [{}, {}]", op, name,
          to_string(x.dtype()), x.shape(), to_string(dtype), rows, columns);
}

// Keys and values: as the queries, or narrower under f32, or q8_0 on a GPU (and by the reference).
void check_stored(const Context& ctx, const char* op, const AttentionShape& s, const Tensor& q, const Tensor& k,
                  const Tensor& v, Index capacity) {
  const DType stored = k.dtype();
  const bool wide = q.dtype() == DType::kF32;
  require(stored == q.dtype() || (wide && stored == DType::kBF16) ||
              (stored == DType::kQ8_0 && (wide || ctx.backend() != Backend::kCpu)),
          "[{}] keys are {} for {} queries; expected the same, or bf16 or q8_0 for f32", op, to_string(stored),
          to_string(q.dtype()));
  require(s.head_dim % block_of(stored).numbers == 0, "[{}] heads of {} are no whole blocks of {}", op, s.head_dim,
          to_string(stored));
  check(op, "k", k, stored, capacity, s.kv_heads * s.head_dim);
  check(op, "v", v, stored, capacity, s.kv_heads * s.head_dim);
  require(s.values == 0 || k.raw() == v.raw(), "[{}] values that are the first numbers of the keys are another tensor", op);
}

Index rows_of(const Tensor& x) { return x.rank() > 0 ? x.dim(0) : 0; }

// Slices that follow one another over `tokens` rows, with tiles inside a cache of `capacity` rows.
void check_slices(const char* op, const Slices& slices, Index tokens, Index capacity) {
  Index row = 0;
  for (const Slice& s : slices) {
    require(s.first_row == row && s.rows >= 0 && s.rows <= tokens - row,
            "[{}] a slice of {} rows from row {} does not follow on row {} of {}", op, s.rows, s.first_row, row, tokens);
    require(s.first_position >= 0, "[{}] a slice begins at position {}, expected 0 or more", op, s.first_position);
    row += s.rows;
    const Index tiles = Slice::tiles_of(s.length());
    require(static_cast<Index>(s.tiles.size()) >= tiles, "[{}] {} tokens from position {} need {} tiles, the slice has {}",
            op, s.rows, s.first_position, tiles, s.tiles.size());
    for (Index i = 0; i < tiles; ++i) {
      const Index first = s.tiles[static_cast<std::size_t>(i)],
                  keys = std::min(kAttentionTile, s.length() - i * kAttentionTile);
      require(first >= 0 && first <= capacity - keys, "[{}] {} tokens from row {} do not fit a cache of {} rows", op, keys,
              first, capacity);
    }
  }
  require(row == tokens, "[{}] the slices have {} rows, the batch {}", op, row, tokens);
}

}  // namespace

void store_rows(Context& ctx, const Tensor& rows, const Slices& slices, Tensor& cache) {
  constexpr const char* kOp = "store_rows";
  require(rows.rank() == 2, "[{}] the rows are {}, expected [tokens, width]", kOp, rows.shape());
  check(kOp, "cache", cache, cache.dtype(), rows_of(cache), rows.dim(1));
  check_slices(kOp, slices, rows.dim(0), cache.dim(0));
  on_backend(
      ctx, [&] { ref::store_rows(rows, slices, cache); }, [&] { cpu::store_rows(ctx, rows, slices, cache); },
      [&] { cuda::store_rows(ctx, rows, slices, cache); });
}

void rotate_and_store(Context& ctx, Tensor& q, Tensor& k, const Tensor& v, const RopeAngles& angles, const Slices& slices,
                      Tensor& k_cache, Tensor& v_cache) {
  constexpr const char* kOp = "rotate_and_store";
  const Index tokens = angles.rows();
  for (const Tensor* x : {&std::as_const(q), &std::as_const(k), &v})
    require(x->rank() == 2 && x->dim(0) == tokens && x->dtype() == q.dtype() && x->dim(1) % angles.head_dim() == 0,
            "[{}] got {} {}, expected {} [{}, heads of {}]", kOp, to_string(x->dtype()), x->shape(), to_string(q.dtype()),
            tokens, angles.head_dim());
  check(kOp, "k_cache", k_cache, v_cache.dtype(), rows_of(k_cache), k.dim(1));
  check(kOp, "v_cache", v_cache, v_cache.dtype(), rows_of(k_cache), v.dim(1));
  check_slices(kOp, slices, tokens, rows_of(k_cache));
  const auto on_cpu = [&] {
    apply_rope(ctx, q, angles);
    apply_rope(ctx, k, angles);
    store_rows(ctx, k, slices, k_cache);
    store_rows(ctx, v, slices, v_cache);
  };
  on_backend(ctx, on_cpu, on_cpu, [&] { cuda::rotate_and_store(ctx, q, k, v, angles, slices, k_cache, v_cache); });
}

bool store_latents(Context& ctx, const HeadNumbers& from, const HeadNumbers& to, const Tensor& projected,
                   const LatentNorm& norm, const RopeAngles& angles, const Slices& slices, Tensor& cache) {
  constexpr const char* kOp = "store_latents";
  const Index tokens = angles.rows(), rank = norm.weight.dim(0);
  check(kOp, "projected", projected, DType::kF32, tokens, rank + angles.head_dim());
  check(kOp, "cache", cache, cache.dtype(), rows_of(cache), projected.dim(1));
  require(from.part.heads == to.part.heads && from.part.width == angles.head_dim() && to.part.width == angles.head_dim() &&
              from.x.dim(0) == tokens && to.x.dim(0) == tokens,
          "[{}] queries of {} heads and {} numbers do not go to {} and {}", kOp, from.part.heads, from.part.width,
          to.part.heads, to.part.width);
  check_slices(kOp, slices, tokens, rows_of(cache));
  return ctx.backend() == Backend::kCuda && from.x.dtype() == to.x.dtype() &&
         cuda::store_latents(ctx, from, to, projected, norm, angles, slices, cache);
}

namespace {

void check_projection(const Tensor& x, const QkvWeights& w, const RopeAngles& angles, const Slices& slices,
                      const Tensor& k_cache, const Tensor& v_cache) {
  constexpr const char* kOp = "project_and_store";
  const Index tokens = rows_of(x);
  for (const Tensor* m : {&w.q, &w.k, &w.v})
    require(m->rank() == 2 && m->dim(1) == x.dim(1) && m->dim(0) % angles.head_dim() == 0,
            "[{}] got weights {}, expected [heads of {}, {}]", kOp, m->shape(), angles.head_dim(), x.dim(1));
  require(angles.rows() == tokens, "[{}] {} rows with the angles of {}", kOp, tokens, angles.rows());
  check(kOp, "k_cache", k_cache, v_cache.dtype(), rows_of(k_cache), w.k.dim(0));
  check(kOp, "v_cache", v_cache, v_cache.dtype(), rows_of(k_cache), w.v.dim(0));
  check_slices(kOp, slices, tokens, rows_of(k_cache));
}

}  // namespace

Tensor project_and_store(Context& ctx, const Tensor& x, const QkvWeights& w, const RopeAngles& angles, const Slices& slices,
                         Tensor& k_cache, Tensor& v_cache) {
  check_projection(x, w, angles, slices, k_cache, v_cache);
  const Index tokens = rows_of(x);
  Tensor q = ctx.empty(x.dtype(), {tokens, w.q.dim(0)});
  if (ctx.backend() == Backend::kCuda && cuda::project_and_store(ctx, x, w, angles, slices, q, k_cache, v_cache)) return q;
  Tensor k = ctx.empty(x.dtype(), {tokens, w.k.dim(0)}), v = ctx.empty(x.dtype(), {tokens, w.v.dim(0)});
  const Projection projections[] = {{&w.q, &q}, {&w.k, &k}, {&w.v, &v}};
  linear(ctx, x, projections);
  rotate_and_store(ctx, q, k, v, angles, slices, k_cache, v_cache);
  return q;
}

Tensor project_and_store(Context& ctx, const AddNorm& x, const QkvWeights& w, const RopeAngles& angles,
                         const Slices& slices, Tensor& k_cache, Tensor& v_cache) {
  if (ctx.backend() == Backend::kCuda) {
    check_projection(x.x, w, angles, slices, k_cache, v_cache);
    Tensor q = ctx.empty(x.dtype, {rows_of(x.x), w.q.dim(0)});
    if (cuda::project_and_store(ctx, x, w, angles, slices, q, k_cache, v_cache)) return q;
  }
  return project_and_store(ctx, add_rms_norm(ctx, x), w, angles, slices, k_cache, v_cache);
}

void attention(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
               const Slices& slices, Tensor& out, Tensor* lse) {
  constexpr const char* kOp = "attention";
  check_shape(kOp, shape);
  const Index tokens = rows_of(q), capacity = rows_of(k);
  check(kOp, "q", q, q.dtype(), tokens, shape.heads * shape.head_dim);
  check_stored(ctx, kOp, shape, q, k, v, capacity);
  check(kOp, "out", out, q.dtype(), tokens, shape.heads * shape.head_dim);
  if (lse) check(kOp, "lse", *lse, DType::kF32, shape.heads, tokens);
  check_slices(kOp, slices, tokens, capacity);
  on_backend(
      ctx, [&] { ref::attention(shape, q, k, v, slices, out, lse); },
      [&] { cpu::attention(ctx, shape, q, k, v, slices, out, lse); },
      [&] { cuda::attention(ctx, shape, q, k, v, slices, out, lse); });
}

bool prefers_bf16(const Context& ctx) {
  return on_backend(
      ctx, [] { return false; }, [] { return cpu::prefers_bf16(); }, [] { return true; });
}

void attention_backward(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Slices& slices, const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq,
                        Tensor& dk, Tensor& dv, const RopeAngles* turned) {
  constexpr const char* kOp = "attention_backward";
  check_shape(kOp, shape);
  const Index tokens = rows_of(q), width = shape.heads * shape.head_dim;
  const Index kv_width = shape.kv_heads * shape.head_dim;
  check(kOp, "q", q, q.dtype(), tokens, width);
  check(kOp, "k", k, q.dtype(), tokens, kv_width);
  check(kOp, "v", v, q.dtype(), tokens, kv_width);
  check(kOp, "out", out, q.dtype(), tokens, width);
  check(kOp, "lse", lse, DType::kF32, shape.heads, tokens);
  check(kOp, "dout", dout, q.dtype(), tokens, width);
  const DType result = dq.dtype() == q.dtype() ? q.dtype() : DType::kF32;
  check(kOp, "dq", dq, result, tokens, width);
  check(kOp, "dk", dk, result, tokens, kv_width);
  check(kOp, "dv", dv, result, tokens, kv_width);
  require(turned == nullptr || (turned->rows() == tokens && turned->head_dim() == shape.head_dim),
          "[{}] the angles do not fit {} rows of heads of {}", kOp, tokens, shape.head_dim);
  check_slices(kOp, slices, tokens, tokens);
  for (const Slice& s : slices) {
    require(s.first_position == 0, "[{}] a slice begins at position {}, expected whole sequences", kOp, s.first_position);
    for (Index i = 0; i < Slice::tiles_of(s.rows); ++i)
      require(s.tiles[static_cast<std::size_t>(i)] == s.first_row + i * kAttentionTile,
              "[{}] tile {} of the slice from row {} begins at row {}, expected the rows of the slice itself", kOp, i,
              s.first_row, s.tiles[static_cast<std::size_t>(i)]);
  }
  // On the CPU in f32, turned back and rounded in passes of their own.
  const auto in_passes = [&](auto backward) {
    const auto wide = [&](Tensor& t) { return result == DType::kF32 ? t : ctx.empty(DType::kF32, t.shape()); };
    Tensor q32 = wide(dq), k32 = wide(dk), v32 = wide(dv);
    backward(q32, k32, v32);
    if (turned && tokens > 0)
      for (Tensor* const t : {&q32, &k32}) apply_rope(ctx, *t, *turned, /*inverse=*/true);
    if (result == DType::kF32) return;
    convert(ctx, q32, dq);
    convert(ctx, k32, dk);
    convert(ctx, v32, dv);
  };
  on_backend(
      ctx,
      [&] {
        in_passes([&](Tensor& a, Tensor& b, Tensor& c) { ref::attention_backward(shape, q, k, v, slices, dout, a, b, c); });
      },
      [&] {
        in_passes([&](Tensor& a, Tensor& b, Tensor& c) {
          cpu::attention_backward(ctx, shape, q, k, v, slices, out, lse, dout, a, b, c);
        });
      },
      [&] { cuda::attention_backward(ctx, shape, q, k, v, slices, out, lse, dout, dq, dk, dv, turned); });
}

}  // namespace dsmoe::ops
