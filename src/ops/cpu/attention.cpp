#include "ops/attention.h"

#include "ops/cpu/attention_rows.h"
#include "ops/dispatch.h"
#include "ops/elementwise.h"
#include "ops/quantize.h"

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
  T* wide;                      // [kTile, head_dim], for keys and values that are stored narrower
  const T **a, **b;             // lines of operands

  Memory(Context& ctx, int worker, const KernelTable& kt, Index most_rows, Index row_floats, Index wide_numbers = 0) {
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
    const std::size_t at_rows = place(row_floats, sizeof(float)), at_wide = place(wide_numbers, sizeof(T));
    const std::size_t at_a = place(most_rows, sizeof(T*)), at_b = place(std::max(most_rows, kTile), sizeof(T*));
    auto* const base = static_cast<char*>(ctx.scratch(worker, size));
    panels = base + at_panels;
    scores = reinterpret_cast<float*>(base + at_scores), slopes = reinterpret_cast<float*>(base + at_slopes);
    probabilities = reinterpret_cast<T*>(base + at_p), gradient = reinterpret_cast<T*>(base + at_gradient);
    rows = reinterpret_cast<float*>(base + at_rows), wide = reinterpret_cast<T*>(base + at_wide);
    a = reinterpret_cast<const T**>(base + at_a), b = reinterpret_cast<const T**>(base + at_b);
  }
};

// The keys or values of a tile.
template <class T, class S>
KvLines<T> lines_of_tile(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Index tile, const S* y,
                         Memory<T>& m) {
  return kv_lines<T>(kt, s, y, rows.tile_row[tile], rows.kv_head, rows.keys(tile), m.wide);
}

// to [rows, keys] = x · yᵀ, with x like q and y like k.
template <class T, class S>
void times_tile(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Index tile, const T* x, const S* y,
                float* to, Memory<T>& m) {
  const KvLines<T> lines = lines_of_tile(kt, s, rows, tile, y, m);
  for (Index r = 0; r < rows.count(); ++r) m.a[r] = x + rows.offset(r, s);
  list_lines(m.b, rows.keys(tile), lines.first, lines.stride);
  product<T>(kt, rows.count(), rows.keys(tile), s.head_dim, {m.a, Lines::kAlong}, {m.b, Lines::kAlong}, to, kTile, false,
             m.panels);
}

// to [rows, columns] = x [rows, keys] · the first columns of y, which is like k.
template <class T, class S>
void mix_tile(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Index tile, const T* x, const S* y,
              Index columns, float* to, Memory<T>& m) {
  const KvLines<T> lines = lines_of_tile(kt, s, rows, tile, y, m);
  list_lines(m.a, rows.count(), x, kTile);
  list_lines(m.b, rows.keys(tile), lines.first, lines.stride);
  product<T>(kt, rows.count(), columns, rows.keys(tile), {m.a, Lines::kAlong}, {m.b, Lines::kAcross}, to, columns, false,
             m.panels);
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

template <class T, class S>
void attend_tile(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Index tile, const T* q, const S* k,
                 const S* v, Partial to, Memory<T>& m) {
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
  mix_tile(kt, s, rows, tile, p, v, s.mixed(), to.mixed, m);
}

template <class T, class S>
void attention_by_blocks(Context& ctx, const AttentionShape& s, std::span<const Block> blocks, const T* q, const S* k,
                         const S* v, T* out, float* lse, Index tokens) {
  const KernelTable& kt = attention_kernels();
  const Index wide = std::is_same_v<T, S> ? 0 : kTile * s.head_dim;
  ctx.pool().run(s.kv_heads * static_cast<Index>(blocks.size()), [&](Index task, int worker) {
    const Block& block = blocks[static_cast<std::size_t>(task / s.kv_heads)];
    const Rows rows = block.rows(task % s.kv_heads);
    const Index most_rows = block.slice->most_rows(), floats = Partial::floats(most_rows, s.mixed());
    Memory<T> m(ctx, worker, kt, most_rows, 2 * floats, wide);
    const Partial total = Partial::at(m.rows, rows.count()), next = Partial::at(m.rows + floats, rows.count());
    attend_tile(kt, s, rows, 0, q, k, v, total, m);
    for (Index tile = 1; tile < rows.tiles(); ++tile) {
      attend_tile(kt, s, rows, tile, q, k, v, next, m);
      merge(kt, s, rows.count(), total, next);
    }
    finish(kt, s, rows, total, out, lse, tokens);
  });
}

std::vector<Blocking> cut(const AttentionShape& s, const Slices& slices) {
  std::vector<Blocking> out;
  out.reserve(slices.size());
  for (const Slice& slice : slices) out.emplace_back(s, slice);
  return out;
}

// The same blocks as ref's.
void store_quantized(Context& ctx, const Tensor& rows, Tensor& to) {
  const KernelTable& kt = attention_kernels();
  const Index width = rows.dim(1);
  const std::size_t bytes = row_bytes(to.dtype(), width);
  auto* const blocks = static_cast<char*>(to.raw_mutable());
  dispatch(rows.dtype(), [&]<class T>(T) {
    each_block(ctx, rows.dim(0), 1, [&](Index first, Index last, int worker) {
      auto* const wide = static_cast<float*>(ctx.scratch(worker, static_cast<std::size_t>(width) * sizeof(float)));
      for (Index i = first; i < last; ++i) {
        to_f32(kt, width, rows.data<T>() + i * width, wide);
        quantize_row(to.dtype(), {wide, static_cast<std::size_t>(width)}, blocks + static_cast<std::size_t>(i) * bytes);
      }
    });
  });
}

}  // namespace

bool prefers_bf16() { return attention_kernels().bf16_dot; }

void store_rows(Context& ctx, const Tensor& rows, const Slices& slices, Tensor& cache) {
  for (const Slice& slice : slices) {
    for (Index p = slice.first_position; p < slice.length();) {  // the rows of one tile after another
      const Index end = std::min(slice.length(), (p / kTile + 1) * kTile);
      const Index from = slice.first_row + p - slice.first_position;
      const Index to = slice.tiles[static_cast<std::size_t>(p / kTile)] + p % kTile;
      Tensor place = cache.rows(to, to + end - p);
      if (is_quantized(cache.dtype())) {
        store_quantized(ctx, rows.rows(from, from + end - p), place);
      } else {
        convert(ctx, rows.rows(from, from + end - p), place);
      }
      p = end;
    }
  }
}

namespace {

// Parts of the heads that share one head of keys, each of which has few rows; 0: there are none.
Index parts_of_few(const AttentionShape& s, const Slice& slice) {
  constexpr Index kMost = 4;  // keys are read once for each; a product packs them once for all
  const Index group = s.heads / s.kv_heads;
  for (Index parts = 1; parts <= std::min(group, s.kv_heads == 1 ? kMost : 1); ++parts)
    if (few_rows(attention_kernels(), s, Blocking(s, slice, 0, parts))) return parts;
  return 0;
}

// Where few queries share one head of keys, as in decoding with latent attention, threads take some of the heads each.
std::vector<Blocking> cut_for_threads(const Context& ctx, const AttentionShape& s, const Slices& slices) {
  constexpr Index kFewestHeads = 4;  // keys are read once for each part
  const Index most = std::max<Index>(1, s.heads / s.kv_heads / kFewestHeads);
  std::vector<Index> few;
  Index tasks = 0;
  for (const Slice& slice : slices) {
    few.push_back(parts_of_few(s, slice));
    // Tasks of few rows take as long as each other; of blocks, each thread should have two.
    if (few.back() == 0) tasks += s.kv_heads * Blocking(s, slice).blocks();
    if (few.back() > 0 && s.kv_heads == 1) tasks += 2 * few.back() * Slice::tiles_of(slice.length());
  }
  const Index wanted = ctx.threads() > 1 ? 2 * ctx.threads() : 1,
              times = tasks > 0 ? std::max<Index>(1, wanted / tasks) : 1;
  std::vector<Blocking> out;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Index least = std::max<Index>(1, few[i]);
    const Index parts = few[i] > 0 && s.kv_heads > 1 ? 1 : std::max(least, std::min(times * least, most));
    for (Index part = 0; part < parts; ++part) out.emplace_back(s, slices[i], part, parts);
  }
  return out;
}

}  // namespace

void attention(Context& ctx, const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
               const Slices& slices, Tensor& out, Tensor* lse) {
  const std::vector<Blocking> cuts = cut_for_threads(ctx, s, slices);
  std::vector<Block> few, many;
  for (const Blocking& slice : cuts) {
    // The last block first: it has the most keys, and the short ones at the end leave no thread waiting for long.
    const bool whole = slice.group == slice.all || s.kv_heads == 1;
    std::vector<Block>& list = whole && few_rows(attention_kernels(), s, slice) ? few : many;
    for (Index block = slice.blocks(); block-- > 0;) list.push_back({&slice, block});
  }
  float* const log_sums = lse ? lse->data<float>() : nullptr;
  const auto run = [&]<class T, class S>(const T* queries, const S* keys, const S* values) {
    T* const to = out.data<T>();
    if (!many.empty()) attention_by_blocks(ctx, s, many, queries, keys, values, to, log_sums, q.dim(0));
    if (!few.empty()) attention_few_rows(ctx, s, few, queries, keys, values, to, log_sums, q.dim(0));
  };
  if (k.dtype() == DType::kQ8_0)
    return run(q.data<float>(), static_cast<const BlockQ8_0*>(k.raw()), static_cast<const BlockQ8_0*>(v.raw()));
  if (k.dtype() != q.dtype()) return run(q.data<float>(), k.data<BFloat16>(), v.data<BFloat16>());
  dispatch(q.dtype(), [&]<class T>(T) { run(q.data<T>(), k.data<T>(), v.data<T>()); });
}

namespace {

// The gradient of a batch of sequences. With p = softmax(scale q·k): dv = pᵀ dout, dp = dout·v, ds = scale p (dp - delta)
// where delta = <p, dp> = <dout, out>, dq = ds k, dk = dsᵀ q. p is computed again, from lse.
template <class T>
struct Backward {
  const KernelTable& kt;
  const AttentionShape& s;
  const T *q, *k, *v, *dout;
  const float *lse, *delta;  // [H, T]
  float *dq, *dk, *dv;
  Index tokens;

  // What one block of queries and one tile of keys add to dq, and to dk and dv.
  void add(const Rows& rows, Index tile, bool queries, bool keys, Memory<T>& m) const {
    times_tile(kt, s, rows, tile, q, k, m.scores, m);
    times_tile(kt, s, rows, tile, dout, v, m.slopes, m);
    const Index count = rows.keys(tile);
    for (Index r = 0; r < rows.count(); ++r) {
      float *const score = m.scores + r * kTile, *const slope = m.slopes + r * kTile;
      const Index visible = rows.visible(r, tile), at = rows.head(r) * tokens + rows.query(r);
      kt.exp_shifted(visible, s.scale, lse[at] / s.scale, score, score);
      kt.softmax_backward(visible, s.scale, delta[at], score, slope, slope);
      for (float* x : {score, slope}) std::fill(x + visible, x + count, 0.0f);
    }
    const T* const p = stored(kt, rows, count, m.scores, m.probabilities);
    const T* const ds = stored(kt, rows, count, m.slopes, m.gradient);
    if (queries) {
      mix_tile(kt, s, rows, tile, ds, k, s.head_dim, m.rows, m);
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
               to + rows.tile_offset(tile, s), width, true, m.panels);
  }

  // dk and dv of one tile, and what it adds to dq.
  void tile_of_head(const Blocking& slice, Index kv_head, Index tile, bool queries, Memory<T>& m) const {
    const Index width = s.kv_heads * s.head_dim, keys = std::min(kTile, slice.slice.rows - tile * kTile);
    const Index first = Rows(slice, kv_head, 0).tile_offset(tile, s);
    for (Index key = 0; key < keys; ++key)
      for (float* x : {dk, dv}) std::fill_n(x + first + key * width, s.head_dim, 0.0f);
    for (Index block = tile * kTile / slice.size; block < slice.blocks(); ++block)
      add(Rows(slice, kv_head, block), tile, queries, true, m);
  }
};

// <dout, out> of every row, [H, T].
template <class T>
Tensor row_products(Context& ctx, const AttentionShape& s, const Tensor& dout, const Tensor& out) {
  const KernelTable& kt = attention_kernels();
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
                        const Slices& slices, const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq,
                        Tensor& dk, Tensor& dv) {
  const std::vector<Blocking> cuts = cut(s, slices);
  std::vector<Block> tiles, blocks;  // of all slices
  Index most_rows = 0;
  for (const Blocking& slice : cuts) {
    most_rows = std::max(most_rows, slice.most_rows());
    for (Index tile = 0; tile < Slice::tiles_of(slice.slice.rows); ++tile) tiles.push_back({&slice, tile});
    for (Index block = slice.blocks(); block-- > 0;) blocks.push_back({&slice, block});
  }
  dispatch(q.dtype(), [&]<class T>(T) {
    const Tensor delta = row_products<T>(ctx, s, dout, out);
    const Backward<T> backward{attention_kernels(), s,
                               q.data<T>(),         k.data<T>(),
                               v.data<T>(),         dout.data<T>(),
                               lse.data<float>(),   delta.template data<float>(),
                               dq.data<float>(),    dk.data<float>(),
                               dv.data<float>(),    q.dim(0)};
    // fn(item, head, memory) for all heads of all items.
    const auto each_head = [&](const auto& items, auto fn) {
      ctx.pool().run(s.kv_heads * static_cast<Index>(items.size()), [&](Index task, int worker) {
        Memory<T> m(ctx, worker, backward.kt, most_rows, most_rows * s.head_dim);
        fn(items[static_cast<std::size_t>(task / s.kv_heads)], task % s.kv_heads, m);
      });
    };
    if (s.kv_heads * static_cast<Index>(cuts.size()) >= ctx.threads()) {  // a task is a head of a sequence
      each_head(cuts, [&](const Blocking& slice, Index head, Memory<T>& m) {
        for (Index tile = 0; tile < Slice::tiles_of(slice.slice.rows); ++tile)
          backward.tile_of_head(slice, head, tile, true, m);
      });
      return;
    }
    // Too few heads: dk and dv by tiles, then dq by blocks, at the price of computing p and ds twice. Every sum
    // has the order that it has above.
    each_head(tiles, [&](const Block& tile, Index head, Memory<T>& m) {
      backward.tile_of_head(*tile.slice, head, tile.number, false, m);
    });
    each_head(blocks, [&](const Block& block, Index head, Memory<T>& m) {
      const Rows rows = block.rows(head);
      for (Index tile = 0; tile < rows.tiles(); ++tile) backward.add(rows, tile, true, false, m);
    });
  });
}

}  // namespace dsmoe::ops::cpu
