#include "ops/attention.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

// Keys of a tile; tile i holds the keys at positions [i * kTile, (i + 1) * kTile).
constexpr Index kTile = 256;
// Rows of one product, a row being one query of one head: enough to make up for packing the keys, few enough that
// little is computed of what the causal mask hides.
constexpr Index kBlockRows = 128;

// Queries that are worked on together, with all heads that share their keys and values. Blocks begin at positions
// that are multiples of `size`, which divides kTile: so a block's keys end in the tile of its last query, and every
// query sees keys of every tile up to that one.
struct Blocking {
  Index tokens, first_position, group, size;

  Blocking(const AttentionShape& s, Index token_count, Index first)
      : tokens(token_count),
        first_position(first),
        group(s.heads / s.kv_heads),
        size(static_cast<Index>(std::bit_floor(static_cast<std::uint64_t>(std::max<Index>(1, kBlockRows / group))))) {}

  Index first_block() const { return first_position / size; }
  Index blocks() const { return tokens == 0 ? 0 : (first_position + tokens - 1) / size - first_block() + 1; }
  Index most_rows() const { return std::min(size, tokens) * group; }
};

// The rows of one block of one key/value head: row r is query first + r / group, head kv_head * group + r % group.
struct Rows {
  Index kv_head, first, queries, group, position;

  Rows(const Blocking& b, Index head, Index block)
      : kv_head(head),
        first(std::max<Index>(0, (b.first_block() + block) * b.size - b.first_position)),
        queries(std::min(b.tokens, (b.first_block() + block + 1) * b.size - b.first_position) - first),
        group(b.group),
        position(b.first_position + first) {}

  Index count() const { return queries * group; }
  Index query(Index row) const { return first + row / group; }
  Index head(Index row) const { return kv_head * group + row % group; }
  // Where a row begins in [T, H * head_dim].
  Index offset(Index row, const AttentionShape& s) const { return (query(row) * s.heads + head(row)) * s.head_dim; }
  Index tiles() const { return (position + queries - 1) / kTile + 1; }
  Index keys(Index tile) const { return std::min(kTile, position + queries - tile * kTile); }  // that any row sees
  Index visible(Index row, Index tile) const { return std::min(kTile, position + row / group + 1 - tile * kTile); }
};

// The softmax over the keys of some tiles, for the rows of a block. `sum` and `mixed` are multiples of
// e^(scale * largest), which is left out of both.
struct Partial {
  float* largest;  // [rows] of the scores before scaling
  float* sum;      // [rows] of e^(scale * score)
  float* mixed;    // [rows, head_dim]: the values weighted with e^(scale * score)

  static Index floats(Index rows, Index dim) { return rows * (2 + dim); }
  static Partial at(float* memory, Index rows) { return {memory, memory + rows, memory + 2 * rows}; }
};

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
    const std::size_t at_scores = place(most_rows * kTile, sizeof(float)),
                      at_slopes = place(most_rows * kTile, sizeof(float));
    const std::size_t at_p = place(most_rows * kTile, sizeof(T)), at_gradient = place(most_rows * kTile, sizeof(T));
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

template <class T>
void list_rows(const T** line, const Rows& rows, const AttentionShape& s, const T* base) {
  for (Index r = 0; r < rows.count(); ++r) line[r] = base + rows.offset(r, s);
}

// The rows of a tile's keys or values for one head.
template <class T>
void list_tile(const T** line, Index keys, Index tile, const Rows& rows, const AttentionShape& s, const T* base) {
  const Index width = s.kv_heads * s.head_dim;
  list_lines(line, keys, base + tile * kTile * width + rows.kv_head * s.head_dim, width);
}

// [rows, keys] = x · yᵀ, with x like q and y like k.
template <class T>
void times_tile(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Index tile, const T* x, const T* y,
                float* to, Memory<T>& m) {
  list_rows(m.a, rows, s, x);
  list_tile(m.b, rows.keys(tile), tile, rows, s, y);
  product<T>(kt, rows.count(), rows.keys(tile), s.head_dim, {m.a, Lines::kAlong}, {m.b, Lines::kAlong}, to, kTile, false,
             m.panels);
}

// to [rows, head_dim] = x [rows, keys] · y, with y like k.
template <class T>
void mix_tile(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Index tile, const T* x, const T* y,
              float* to, Memory<T>& m) {
  list_lines(m.a, rows.count(), x, kTile);
  list_tile(m.b, rows.keys(tile), tile, rows, s, y);
  product<T>(kt, rows.count(), s.head_dim, rows.keys(tile), {m.a, Lines::kAlong}, {m.b, Lines::kAcross}, to, s.head_dim,
             false, m.panels);
}

template <class T>
void attend_tile(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Index tile, const T* q, const T* k,
                 const T* v, Partial to, Memory<T>& m) {
  times_tile(kt, s, rows, tile, q, k, m.scores, m);
  const Index keys = rows.keys(tile);
  for (Index r = 0; r < rows.count(); ++r) {
    float* const score = m.scores + r * kTile;
    const Index visible = rows.visible(r, tile);
    to.largest[r] = kt.largest(visible, score);
    to.sum[r] = kt.exp_shifted(visible, s.scale, to.largest[r], score, score);
    std::fill(score + visible, score + keys, 0.0f);
    if constexpr (sizeof(T) == 2) from_f32(kt, keys, score, m.probabilities + r * kTile);
  }
  const T* p = m.probabilities;
  if constexpr (sizeof(T) == 4) p = m.scores;
  mix_tile(kt, s, rows, tile, p, v, to.mixed, m);
}

// Adds the keys of a later tile.
void merge(const KernelTable& kt, const AttentionShape& s, Index rows, Partial total, const Partial& next) {
  for (Index r = 0; r < rows; ++r) {
    const float largest = std::max(total.largest[r], next.largest[r]);
    const float keep = std::exp(s.scale * (total.largest[r] - largest)),
                add = std::exp(s.scale * (next.largest[r] - largest));
    float* const mixed = total.mixed + r * s.head_dim;
    kt.scale(s.head_dim, keep, mixed, mixed);
    kt.add_scaled(s.head_dim, add, next.mixed + r * s.head_dim, mixed);
    total.sum[r] = total.sum[r] * keep + next.sum[r] * add;
    total.largest[r] = largest;
  }
}

template <class T>
void finish(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Partial total, T* out, float* lse,
            Index tokens) {
  for (Index r = 0; r < rows.count(); ++r) {
    float* const mixed = total.mixed + r * s.head_dim;
    kt.scale(s.head_dim, 1 / total.sum[r], mixed, mixed);
    from_f32(kt, s.head_dim, mixed, out + rows.offset(r, s));
    if (lse) lse[rows.head(r) * tokens + rows.query(r)] = s.scale * total.largest[r] + std::log(total.sum[r]);
  }
}

// Few queries and many keys, too little for the threads when a task is a head: a task is a tile of a head instead.
template <class T>
void attention_by_tiles(Context& ctx, const AttentionShape& s, const Blocking& blocking, const T* q, const T* k, const T* v,
                        T* out, float* lse) {
  const KernelTable& kt = kernels();
  const Index blocks = blocking.blocks(), tiles = Rows(blocking, 0, blocks - 1).tiles(), most = blocking.most_rows();
  const Index floats = Partial::floats(most, s.head_dim);
  Tensor memory(DType::kF32, {s.kv_heads * blocks, tiles, floats});
  float* const partials = memory.data<float>();
  ctx.pool().run(s.kv_heads * blocks * tiles, [&](Index task, int worker) {
    const Index tile = task % tiles;
    const Rows rows(blocking, task / tiles / blocks, task / tiles % blocks);
    if (tile >= rows.tiles()) return;
    Memory<T> m(ctx, worker, kt, most, 0);
    attend_tile(kt, s, rows, tile, q, k, v, Partial::at(partials + task * floats, rows.count()), m);
  });
  ctx.pool().run(s.kv_heads * blocks, [&](Index task, int) {
    const Rows rows(blocking, task / blocks, task % blocks);
    const auto partial = [&](Index tile) { return Partial::at(partials + (task * tiles + tile) * floats, rows.count()); };
    for (Index tile = 1; tile < rows.tiles(); ++tile) merge(kt, s, rows.count(), partial(0), partial(tile));
    finish(kt, s, rows, partial(0), out, lse, blocking.tokens);
  });
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
  constexpr Index kFewQueries = 8;  // whose partial results, one for each tile, are small beside the keys
  const Blocking blocking(s, q.dim(0), first_position);
  if (blocking.tokens == 0) return;
  const bool by_tiles =
      blocking.tokens <= kFewQueries && s.kv_heads * blocking.blocks() < 2 * ctx.threads() && ctx.threads() > 1;
  dispatch(q.dtype(), [&]<class T>(T) {
    (by_tiles ? attention_by_tiles<T> : attention_by_blocks<T>)(ctx, s, blocking, q.data<T>(), k_cache.data<T>(),
                                                                v_cache.data<T>(), out.data<T>(),
                                                                lse ? lse->data<float>() : nullptr);
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
    const T *p = m.probabilities, *ds = m.gradient;
    if constexpr (sizeof(T) == 4) p = m.scores, ds = m.slopes;
    for (Index r = 0; r < rows.count(); ++r) {
      float *const score = m.scores + r * kTile, *const slope = m.slopes + r * kTile;
      const Index visible = rows.visible(r, tile), at = rows.head(r) * blocking.tokens + rows.query(r);
      kt.exp_shifted(visible, s.scale, lse[at] / s.scale, score, score);
      kt.softmax_backward(visible, s.scale, delta[at], score, slope, slope);
      for (float* x : {score, slope}) std::fill(x + visible, x + rows.keys(tile), 0.0f);
      if constexpr (sizeof(T) == 2) {
        from_f32(kt, rows.keys(tile), score, m.probabilities + r * kTile);
        from_f32(kt, rows.keys(tile), slope, m.gradient + r * kTile);
      }
    }
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
    list_rows(m.b, rows, s, y);
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
