// Batches for tests of attention on a GPU: parts of texts, whose pages lie in the cache in random order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "cuda/gpu_test.h"
#include "ops/attention.h"
#include "ops/quantize.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {

using ops::AttentionShape;
using ops::kAttentionTile;

// As a cache of that dtype has it.
inline Tensor stored_as(const Tensor& x, DType dtype) {
  if (!is_quantized(dtype)) return x.to(dtype);
  Tensor out(dtype, x.shape());
  ops::quantize_row(dtype, x.to(DType::kF32).span<float>(), out.raw_mutable());
  return out;
}

inline AttentionShape shape_of(Index heads, Index kv_heads, Index dim) {
  return {heads, kv_heads, dim, 1 / std::sqrt(static_cast<float>(dim))};
}

// Queries, keys and values of a whole text.
struct Text {
  Tensor q, k, v;
  Text(DType type, const AttentionShape& s, Index length, std::uint64_t seed) : Text(type, type, s, length, seed) {}
  Text(DType type, DType cache, const AttentionShape& s, Index length, std::uint64_t seed)
      : q(random_tensor(type, {length, s.heads * s.head_dim}, seed)),
        k(stored_as(random_tensor(type, {length, s.kv_heads * s.head_dim}, seed + 1), cache)),
        v(stored_as(random_tensor(type, {length, s.kv_heads * s.head_dim}, seed + 2), cache)) {}
};

// Tokens [first, last) of a text, whose earlier tokens are in the cache.
struct TextPart {
  const Text* text;
  Index first, last;
};

inline void copy_rows(const Tensor& from, Index first, Index count, Tensor& to, Index at) {
  if (count == 0) return;
  const Tensor rows = from.rows(first, first + count);
  std::memcpy(to.rows(at, at + count).raw_mutable(), rows.raw(), rows.bytes());
}

// A batch of parts whose pages lie in the cache in random order. Rows of the cache that no part has are NaN.
struct AttentionBatch {
  AttentionShape shape;
  Tensor q, k, v;
  std::vector<std::vector<Index>> pages;
  std::vector<ops::Slice> slices;

  AttentionBatch(const AttentionShape& s, const std::vector<TextPart>& parts, Draw& draw) : shape(s) {
    Index rows = 0, count = 0;
    for (const TextPart& p : parts) rows += p.last - p.first, count += ops::Slice::tiles_of(p.last);
    std::vector<Index> places(static_cast<std::size_t>(count + 1));
    std::iota(places.begin(), places.end(), 0);
    for (std::size_t i = places.size(); i > 1; --i)
      std::swap(places[i - 1], places[static_cast<std::size_t>(draw(static_cast<Index>(i)))]);
    const Text& any = *parts.front().text;
    Tensor nothing(any.k.dtype(), {(count + 1) * kAttentionTile, s.kv_heads * s.head_dim});
    std::memset(nothing.raw_mutable(), 0xff, nothing.bytes());
    q = Tensor(any.q.dtype(), {rows, s.heads * s.head_dim}), k = nothing.clone(), v = nothing.clone();
    rows = 0;
    for (const TextPart& p : parts) {
      std::vector<Index>& own = pages.emplace_back();
      for (Index at = 0; at < p.last; at += kAttentionTile) {
        own.push_back(places.back() * kAttentionTile);
        places.pop_back();
        copy_rows(p.text->k, at, std::min(kAttentionTile, p.last - at), k, own.back());
        copy_rows(p.text->v, at, std::min(kAttentionTile, p.last - at), v, own.back());
      }
      copy_rows(p.text->q, p.first, p.last - p.first, q, rows);
      slices.push_back({rows, p.last - p.first, p.first, {}});
      rows += p.last - p.first;
    }
    for (std::size_t i = 0; i < slices.size(); ++i) slices[i].tiles = pages[i];
  }

  struct Result {
    Tensor out, lse;
  };
  Result run(Context& ctx) const {
    Tensor out = ctx.empty(q.dtype(), q.shape()), lse = ctx.empty(DType::kF32, {shape.heads, q.dim(0)});
    if (ctx.backend() == Backend::kCuda)  // what is not written is seen
      for (Tensor* t : {&out, &lse}) *t = ctx.place(nan_like(*t));
    const Tensor keys = ctx.place(k), values = shape.values > 0 ? keys : ctx.place(v);
    ops::attention(ctx, shape, ctx.place(q), keys, values, ops::placed(ctx, slices), out, &lse);
    return {ctx.fetch(out), ctx.fetch(lse)};
  }
  static Tensor nan_like(const Tensor& t) {
    Tensor nan(t.dtype(), t.shape());
    if (nan.bytes() > 0) std::memset(nan.raw_mutable(), 0xff, nan.bytes());
    return nan;
  }
};

// Rows [first, first + rows) of a have the bits of those from `other` on of b.
inline ::testing::AssertionResult same_rows(const AttentionBatch::Result& a, Index first, Index rows,
                                            const AttentionBatch::Result& b, Index other) {
  if (rows == 0) return ::testing::AssertionSuccess();
  const auto out = same_bits(a.out.rows(first, first + rows), b.out.rows(other, other + rows));
  if (!out) return out;
  for (Index h = 0; h < a.lse.dim(0); ++h)
    for (Index i = 0; i < rows; ++i) {
      const float x = a.lse.data<float>()[h * a.lse.dim(1) + first + i];
      const float y = b.lse.data<float>()[h * b.lse.dim(1) + other + i];
      if (!(x == y)) return ::testing::AssertionFailure() << "lse of head " << h << ", row " << i << ": " << x << ", " << y;
    }
  return ::testing::AssertionSuccess();
}

}  // namespace dsmoe::test
