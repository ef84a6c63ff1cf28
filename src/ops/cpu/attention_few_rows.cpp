#include "ops/cpu/attention_rows.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

// Keys that all heads take before any takes the next: the cache is read front to back, which memory delivers about
// twice as fast as the same bytes head by head.
constexpr Index kKeysPerStep = 32;
static_assert(kTile % kKeysPerStep == 0 && kKeysPerStep % 2 == 0);

constexpr Index kMostRows = 16;  // of one head

// One tile for the heads [first_head, last_head).
template <class T, class S>
class TileOfHeads {
 public:
  TileOfHeads(Context& ctx, int worker, const AttentionShape& s, const Block& block, Index tile, Index first_head,
              Index last_head)
      : kt_(attention_kernels()),
        s_(s),
        first_(first_head),
        last_(last_head),
        tile_(tile),
        width_(s.kv_heads * s.head_dim),
        rows_(block.rows(first_head)),
        keys_(rows_.keys(tile)) {
    const auto score_bytes = static_cast<std::size_t>((last_ - first_) * rows_.count() * kTile) * sizeof(float);
    const Index wide = std::is_same_v<T, S> ? 0 : kKeysPerStep * s.head_dim;
    auto* const base =
        static_cast<char*>(ctx.scratch(worker, 2 * score_bytes + static_cast<std::size_t>(wide) * sizeof(T)));
    scores_ = reinterpret_cast<float*>(base);
    wide_ = reinterpret_cast<T*>(base + 2 * score_bytes);
    if constexpr (sizeof(T) == 4) {
      probabilities_ = scores_;
    } else {
      probabilities_ = reinterpret_cast<T*>(base + score_bytes);
    }
  }

  // partial(head): where the result of a head goes.
  template <class Where>
  void run(const T* q, const S* k, const S* v, Where partial) {
    each_step(k, v, [&](Index head, Index key, Index count, Pieces ahead) {
      const T* a[kMostRows];
      for (Index r = 0; r < rows_.count(); ++r)
        a[r] = q + rows_.offset(r, s_) + (head - first_) * rows_.group * s_.head_dim;
      dot(a, lines(k, head, key, count), count, score(head, 0) + key, ahead);
    });
    for (Index head = first_; head < last_; ++head) weigh(head, partial(head));
    each_step(v, nullptr, [&](Index head, Index key, Index count, Pieces ahead) {
      const T* a[kMostRows];
      for (Index r = 0; r < rows_.count(); ++r) a[r] = probabilities_ + (score(head, r) - scores_) + key;
      mix(a, lines(v, head, key, count), count, partial(head).mixed, key > 0, ahead);
    });
  }

 private:
  float* score(Index head, Index row) { return scores_ + ((head - first_) * rows_.count() + row) * kTile; }
  KvLines<T> lines(const S* base, Index head, Index key, Index count) const {
    return kv_lines<T>(kt_, s_, base, rows_.tile_row[tile_] + key, head, count, wide_);
  }
  const char* place(const S* base, Index head, Index key) const {
    return reinterpret_cast<const char*>(stored_at(base, (rows_.tile_row[tile_] + key) * width_ + head * s_.head_dim));
  }

  // fn(head, key, count, ahead) for all heads and the keys of one step, then the next step. `ahead` is a share of what
  // the step after will read, or the first of `next` at the end.
  template <class Fn>
  void each_step(const S* base, const S* next, Fn fn) {
    const Index heads = last_ - first_, length = stored_bytes<S>(heads * s_.head_dim), stride = stored_bytes<S>(width_);
    for (Index key = 0; key < keys_; key += kKeysPerStep) {
      const bool more = key + kKeysPerStep < keys_;
      const char* const begin = more ? place(base, first_, key + kKeysPerStep) : next ? place(next, first_, 0) : nullptr;
      const Index lines = begin ? std::min(kKeysPerStep, more ? keys_ - key - kKeysPerStep : keys_) : 0;
      for (Index head = first_; head < last_; ++head) {
        const Index from = lines * (head - first_) / heads, to = lines * (head - first_ + 1) / heads;
        const Pieces ahead{begin ? begin + from * stride : nullptr, to - from, length, stride};
        fn(head, key, std::min(kKeysPerStep, keys_ - key), ahead);
      }
    }
  }

  // The softmax of one head's rows over this tile.
  void weigh(Index head, const Partial& to) {
    for (Index r = 0; r < rows_.count(); ++r) {
      float* const x = score(head, r);
      const Index visible = rows_.visible(r, tile_);
      to.largest[r] = kt_.largest(visible, x);
      to.sum[r] = kt_.exp_shifted(visible, s_.scale, to.largest[r], x, x);
      std::fill(x + visible, x + keys_, 0.0f);
      if constexpr (sizeof(T) == 2) {
        T* const p = probabilities_ + (x - scores_);
        from_f32(kt_, keys_, x, p);
        if (keys_ % 2 != 0) p[keys_] = T{};  // see mix_lines
      }
    }
  }

  // The sums over blocks of kDepth units are added in order, as in a product.
  void dot(const T* const* a, const KvLines<T>& x, Index count, float* to, Pieces ahead) const {
    constexpr Index kNumbers = kDepth * static_cast<Index>(sizeof(float) / sizeof(T));
    const Index m = rows_.count();
    dot_block(a, x, std::min(kNumbers, s_.head_dim), count, to, kTile, ahead);
    for (Index p = kNumbers; p < s_.head_dim; p += kNumbers) {
      const T* rest[kMostRows];
      alignas(64) float sums[kMostRows * kKeysPerStep];
      for (Index r = 0; r < m; ++r) rest[r] = a[r] + p;
      dot_block(rest, {x.first + p, x.stride}, std::min(kNumbers, s_.head_dim - p), count, sums, kKeysPerStep, Pieces{});
      for (Index r = 0; r < m; ++r) kt_.add_scaled(count, 1.0f, sums + r * kKeysPerStep, to + r * kTile);
    }
  }
  void dot_block(const T* const* a, const KvLines<T>& x, Index k, Index count, float* to, Index ldc, Pieces ahead) const {
    const int m = static_cast<int>(rows_.count());
    if constexpr (sizeof(T) == 4) {
      kt_.dot_lines_f32(k, a, m, x.first, x.stride, count, to, ldc, ahead);
    } else {
      kt_.dot_lines_bf16(k, bits(a), m, *bits(&x.first), x.stride, count, to, ldc, ahead);
    }
  }
  void mix(const T* const* a, const KvLines<T>& x, Index count, float* to, bool go_on, Pieces ahead) const {
    const int m = static_cast<int>(rows_.count());
    if constexpr (sizeof(T) == 4) {
      kt_.mix_lines_f32(count, a, m, x.first, x.stride, s_.mixed(), to, s_.mixed(), go_on, ahead);
    } else {
      kt_.mix_lines_bf16(count, bits(a), m, *bits(&x.first), x.stride, s_.mixed(), to, s_.mixed(), go_on, ahead);
    }
  }
  static const std::uint16_t* const* bits(const T* const* x) { return reinterpret_cast<const std::uint16_t* const*>(x); }

  const KernelTable& kt_;
  const AttentionShape& s_;
  Index first_, last_, tile_, width_;
  Rows rows_;  // of the first head; the others' follow
  Index keys_;
  float* scores_;     // [heads, rows, kTile]
  T* probabilities_;  // the same, rounded to storage
  T* wide_;           // [kKeysPerStep, head_dim]: keys or values of one step and head, if they are stored narrower
};

}  // namespace

bool few_rows(const KernelTable& kt, const AttentionShape& s, const Blocking& slice) {
  return slice.most_rows() <= std::min<Index>(kt.mr, kMostRows) && s.head_dim % 2 == 0;
}

template <class T, class S>
void attention_few_rows(Context& ctx, const AttentionShape& s, std::span<const Block> blocks, const T* q, const S* k,
                        const S* v, T* out, float* lse, Index tokens) {
  const KernelTable& kt = attention_kernels();
  // Every tile of every block has a partial result for each head.
  struct TileOfBlock {
    std::size_t block;
    Index tile;
  };
  std::vector<TileOfBlock> all;
  std::vector<Index> first(blocks.size());  // float at which the partial results of a block begin: [kv_heads, tiles]
  Index floats = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const Index tiles = blocks[b].rows(0).tiles();
    first[b] = floats;
    floats += s.kv_heads * tiles * Partial::floats(blocks[b].slice->most_rows(), s.mixed());
    for (Index tile = 0; tile < tiles; ++tile) all.push_back({b, tile});
  }
  Tensor memory = ctx.empty(DType::kF32, {floats});
  float* const partials = memory.data<float>();
  const auto partial = [&](std::size_t b, const Rows& rows, Index tile) {
    const Index size = Partial::floats(blocks[b].slice->most_rows(), s.mixed());
    return Partial::at(partials + first[b] + (rows.kv_head * rows.tiles() + tile) * size, rows.count());
  };
  // A task takes all heads, unless that leaves too few tasks.
  const Index wanted = ctx.threads() > 1 ? 2 * ctx.threads() : 1, tiles = static_cast<Index>(all.size());
  const Index parts = std::clamp<Index>((wanted + tiles - 1) / tiles, 1, s.kv_heads);
  ctx.pool().run(tiles * parts, [&](Index task, int worker) {
    const auto [b, tile] = all[static_cast<std::size_t>(task / parts)];
    const Index part = task % parts;
    TileOfHeads<T, S> heads(ctx, worker, s, blocks[b], tile, s.kv_heads * part / parts, s.kv_heads * (part + 1) / parts);
    heads.run(q, k, v, [&, b = b, tile = tile](Index head) { return partial(b, blocks[b].rows(head), tile); });
  });
  const auto put_together = [&](std::size_t b, Index head) {
    const Rows rows = blocks[b].rows(head);
    for (Index tile = 1; tile < rows.tiles(); ++tile)
      merge(kt, s, rows.count(), partial(b, rows, 0), partial(b, rows, tile));
    finish(kt, s, rows, partial(b, rows, 0), out, lse, tokens);
  };
  constexpr Index kWorthATask = 1 << 14;  // waking threads costs more than adding as many numbers
  const Index pairs = s.kv_heads * static_cast<Index>(blocks.size());
  each_block(ctx, pairs, std::max<Index>(1, kWorthATask * pairs / floats), [&](Index from, Index to, int) {
    for (Index i = from; i < to; ++i) put_together(static_cast<std::size_t>(i / s.kv_heads), i % s.kv_heads);
  });
}

template void attention_few_rows(Context&, const AttentionShape&, std::span<const Block>, const float*, const float*,
                                 const float*, float*, float*, Index);
template void attention_few_rows(Context&, const AttentionShape&, std::span<const Block>, const BFloat16*, const BFloat16*,
                                 const BFloat16*, BFloat16*, float*, Index);
template void attention_few_rows(Context&, const AttentionShape&, std::span<const Block>, const float*, const BFloat16*,
                                 const BFloat16*, float*, float*, Index);
template void attention_few_rows(Context&, const AttentionShape&, std::span<const Block>, const float*, const BlockQ8_0*,
                                 const BlockQ8_0*, float*, float*, Index);

}  // namespace dsmoe::ops::cpu
