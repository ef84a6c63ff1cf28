#include "ops/attention.h"

#include "ops/cpu/attention_rows.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

// A worker's memory for one task.
template <class T>
struct Memory {
  void* panels;
  float *scores, *slopes;       // [rows, kTile] both
  T *probabilities, *gradient;  // the same, rounded to storage
  float* rows;                  // [some, head_dim], see the uses
  const T **a, **b;             // lines of operands

  Memory(Context& ctx, int worker, const KernelTable& kt, Index most_rows, Index row_floats) {
    std::size_t size = 0;
    const auto place = [&](Index count, std::size_t element) {
      const std::size_t at = size;
      size += (static_cast<std::size_t>(count) * element + 63) / 64 * 64;
      return at;
    };
    const std::size_t at_panels = place(1, product_scratch(kt));
    const Index tile = most_rows * kTile;
    const std::size_t at_scores = place(tile, sizeof(float)), at_slopes = place(tile, sizeof(float));
    const std::size_t at_p = place(tile, sizeof(T)), at_gradient = place(tile, sizeof(T));
    const std::size_t at_rows = place(row_floats, sizeof(float));
    const std::size_t at_a = place(most_rows, sizeof(T*)), at_b = place(std::max(most_rows, kTile), sizeof(T*));
    auto* const base = static_cast<char*>(ctx.scratch(worker, size));
    panels = base + at_panels;
    scores = reinterpret_cast<float*>(base + at_scores), slopes = reinterpret_cast<float*>(base + at_slopes);
    probabilities = reinterpret_cast<T*>(base + at_p), gradient = reinterpret_cast<T*>(base + at_gradient);
    rows = reinterpret_cast<float*>(base + at_rows);
    a = reinterpret_cast<const T**>(base + at_a), b = reinterpret_cast<const T**>(base + at_b);
  }
};

// Where a tile begins in the keys or values of a head.
Index tile_offset(Index tile, const Rows& rows, const AttentionShape& s) {
  return (tile * kTile * s.kv_heads + rows.kv_head) * s.head_dim;
}

// to [rows, keys] = x · yᵀ, with x like q and y like k.
template <class T>
void times_tile(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Index tile, const T* x, const T* y,
                float* to, Memory<T>& m) {
  for (Index r = 0; r < rows.count(); ++r) m.a[r] = x + rows.offset(r, s);
  list_lines(m.b, rows.keys(tile), y + tile_offset(tile, rows, s), s.kv_heads * s.head_dim);
  product<T>(kt, rows.count(), rows.keys(tile), s.head_dim, {m.a, Lines::kAlong}, {m.b, Lines::kAlong}, to, kTile, false,
             m.panels);
}

// to [rows, head_dim] = x [rows, keys] · y, with y like k.
template <class T>
void mix_tile(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Index tile, const T* x, const T* y,
              float* to, Memory<T>& m) {
  list_lines(m.a, rows.count(), x, kTile);
  list_lines(m.b, rows.keys(tile), y + tile_offset(tile, rows, s), s.kv_heads * s.head_dim);
  product<T>(kt, rows.count(), s.head_dim, rows.keys(tile), {m.a, Lines::kAlong}, {m.b, Lines::kAcross}, to, s.head_dim,
             false, m.panels);
}

// Rounds f32 rows [rows, kTile] to storage where that is not f32.
template <class T>
const T* stored(const KernelTable& kt, const Rows& rows, Index keys, const float* from, T* to) {
  if constexpr (sizeof(T) == 4) {
    return from;
  } else {
    for (Index r = 0; r < rows.count(); ++r) from_f32(kt, keys, from + r * kTile, to + r * kTile);
    return to;
  }
}

template <class T>
void attend_tile(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Index tile, const T* q, const T* k,
                 const T* v, Partial to, Memory<T>& m) {
  const Index keys = rows.keys(tile);
  times_tile(kt, s, rows, tile, q, k, m.scores, m);
  for (Index r = 0; r < rows.count(); ++r) {
    float* const score = m.scores + r * kTile;
    const Index visible = rows.visible(r, tile);
    to.largest[r] = kt.largest(visible, score);
    to.sum[r] = kt.exp_shifted(visible, s.scale, to.largest[r], score, score);
    std::fill(score + visible, score + keys, 0.0f);
  }
  const T* const p = stored(kt, rows, keys, m.scores, m.probabilities);
  mix_tile(kt, s, rows, tile, p, v, to.mixed, m);
}

template <class T>
void attention_by_blocks(Context& ctx, const AttentionShape& s, const Blocking& blocking, const T* q, const T* k,
                         const T* v, T* out, float* lse) {
  const KernelTable& kt = kernels();
  const Index blocks = blocking.blocks(), floats = Partial::floats(blocking.most_rows(), s.head_dim);
  ctx.pool().run(s.kv_heads * blocks, [&](Index task, int worker) {
    // The last block first: it has the most keys, and the short ones at the end leave no thread waiting for long.
    const Rows rows(blocking, task % s.kv_heads, blocks - 1 - task / s.kv_heads);
    Memory<T> m(ctx, worker, kt, blocking.most_rows(), 2 * floats);
    const Partial total = Partial::at(m.rows, rows.count()), next = Partial::at(m.rows + floats, rows.count());
    attend_tile(kt, s, rows, 0, q, k, v, total, m);
    for (Index tile = 1; tile < rows.tiles(); ++tile) {
      attend_tile(kt, s, rows, tile, q, k, v, next, m);
      merge(kt, s, rows.count(), total, next);
    }
    finish(kt, s, rows, total, out, lse, blocking.tokens);
  });
}

}  // namespace

void attention(Context& ctx, const AttentionShape& s, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
               Index first_position, Tensor& out, Tensor* lse) {
  const Blocking blocking(s, q.dim(0), first_position);
  if (blocking.tokens == 0) return;
  const bool few = few_rows(kernels(), s, blocking);
  float* const log_sums = lse ? lse->data<float>() : nullptr;
  dispatch(q.dtype(), [&]<class T>(T) {
    const auto run = few ? attention_few_rows<T> : attention_by_blocks<T>;
    run(ctx, s, blocking, q.data<T>(), k_cache.data<T>(), v_cache.data<T>(), out.data<T>(), log_sums);
  });
}

namespace {

// The gradient of one sequence. With p = softmax(scale q·k): dv = pᵀ dout, dp = dout·v, ds = scale p (dp - delta)
// where delta = <p, dp> = <dout, out>, dq = ds k, dk = dsᵀ q. p is computed again, from lse.
template <class T>
struct Backward {
  const KernelTable& kt;
  const AttentionShape& s;
  const T *q, *k, *v, *dout;
  const float *lse, *delta;  // [H, T]
  float *dq, *dk, *dv;
  Blocking blocking;

  // What one block of queries and one tile of keys add to dq, and to dk and dv.
  void add(const Rows& rows, Index tile, bool queries, bool keys, Memory<T>& m) const {
    times_tile(kt, s, rows, tile, q, k, m.scores, m);
    times_tile(kt, s, rows, tile, dout, v, m.slopes, m);
    const Index count = rows.keys(tile);
    for (Index r = 0; r < rows.count(); ++r) {
      float *const score = m.scores + r * kTile, *const slope = m.slopes + r * kTile;
      const Index visible = rows.visible(r, tile), at = rows.head(r) * blocking.tokens + rows.query(r);
      kt.exp_shifted(visible, s.scale, lse[at] / s.scale, score, score);
      kt.softmax_backward(visible, s.scale, delta[at], score, slope, slope);
      for (float* x : {score, slope}) std::fill(x + visible, x + count, 0.0f);
    }
    const T* const p = stored(kt, rows, count, m.scores, m.probabilities);
    const T* const ds = stored(kt, rows, count, m.slopes, m.gradient);
    if (queries) {
      mix_tile(kt, s, rows, tile, ds, k, m.rows, m);
      for (Index r = 0; r < rows.count(); ++r) {
        float* const to = dq + rows.offset(r, s);
        if (tile == 0) std::fill(to, to + s.head_dim, 0.0f);
        kt.add_scaled(s.head_dim, 1.0f, m.rows + r * s.head_dim, to);
      }
    }
    if (keys) {
      sum_rows(rows, tile, p, dout, dv, m);
      sum_rows(rows, tile, ds, q, dk, m);
    }
  }

  // The tile's rows of `to` += x [rows, keys]ᵀ · y, with y like q.
  void sum_rows(const Rows& rows, Index tile, const T* x, const T* y, float* to, Memory<T>& m) const {
    const Index width = s.kv_heads * s.head_dim;
    list_lines(m.a, rows.count(), x, kTile);
    for (Index r = 0; r < rows.count(); ++r) m.b[r] = y + rows.offset(r, s);
    product<T>(kt, rows.keys(tile), s.head_dim, rows.count(), {m.a, Lines::kAcross}, {m.b, Lines::kAcross},
               to + tile * kTile * width + rows.kv_head * s.head_dim, width, true, m.panels);
  }

  // dk and dv of one tile, and what it adds to dq.
  void tile_of_head(Index kv_head, Index tile, bool queries, Memory<T>& m) const {
    const Index width = s.kv_heads * s.head_dim;
    for (Index key = tile * kTile; key < std::min(blocking.tokens, (tile + 1) * kTile); ++key)
      for (float* x : {dk, dv}) std::fill_n(x + key * width + kv_head * s.head_dim, s.head_dim, 0.0f);
    for (Index block = tile * kTile / blocking.size; block < blocking.blocks(); ++block)
      add(Rows(blocking, kv_head, block), tile, queries, true, m);
  }
};

// <dout, out> of every row, [H, T].
template <class T>
Tensor row_products(Context& ctx, const AttentionShape& s, const Tensor& dout, const Tensor& out) {
  const KernelTable& kt = kernels();
  const Index tokens = out.dim(0), dim = s.head_dim;
  Tensor products(DType::kF32, {s.heads, tokens});
  float* const to = products.data<float>();
  each_block(ctx, tokens, kTokensPerTask, [&](Index first, Index last, int worker) {
    auto* const x = static_cast<float*>(ctx.scratch(worker, 2 * static_cast<std::size_t>(dim) * sizeof(float)));
    for (Index t = first; t < last; ++t) {
      for (Index h = 0; h < s.heads; ++h) {
        to_f32(kt, dim, dout.data<T>() + (t * s.heads + h) * dim, x);
        to_f32(kt, dim, out.data<T>() + (t * s.heads + h) * dim, x + dim);
        to[h * tokens + t] = kt.dot(dim, x, x + dim);
      }
    }
  });
  return products;
}

}  // namespace

void attention_backward(Context& ctx, const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq, Tensor& dk, Tensor& dv) {
  const Blocking blocking(s, q.dim(0), 0);
  const Index blocks = blocking.blocks(), tiles = (blocking.tokens + kTile - 1) / kTile;
  dispatch(q.dtype(), [&]<class T>(T) {
    const Tensor delta = row_products<T>(ctx, s, dout, out);
    const Backward<T> backward{kernels(),         s,
                               q.data<T>(),       k.data<T>(),
                               v.data<T>(),       dout.data<T>(),
                               lse.data<float>(), delta.template data<float>(),
                               dq.data<float>(),  dk.data<float>(),
                               dv.data<float>(),  blocking};
    const auto memory = [&](int worker) {
      return Memory<T>(ctx, worker, backward.kt, blocking.most_rows(), blocking.most_rows() * s.head_dim);
    };
    if (s.kv_heads >= ctx.threads()) {  // a task is a head
      ctx.pool().run(s.kv_heads, [&](Index head, int worker) {
        Memory<T> m = memory(worker);
        for (Index tile = 0; tile < tiles; ++tile) backward.tile_of_head(head, tile, true, m);
      });
      return;
    }
    // Too few heads: dk and dv by tiles, then dq by blocks, at the price of computing p and ds twice. Every sum
    // has the order that it has above.
    ctx.pool().run(s.kv_heads * tiles, [&](Index task, int worker) {
      Memory<T> m = memory(worker);
      backward.tile_of_head(task % s.kv_heads, task / s.kv_heads, false, m);
    });
    ctx.pool().run(s.kv_heads * blocks, [&](Index task, int worker) {
      Memory<T> m = memory(worker);
      const Rows rows(blocking, task % s.kv_heads, blocks - 1 - task / s.kv_heads);
      for (Index tile = 0; tile < rows.tiles(); ++tile) backward.add(rows, tile, true, false, m);
    });
  });
}

}  // namespace dsmoe::ops::cpu
