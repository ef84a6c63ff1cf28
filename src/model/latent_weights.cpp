#include "model/latent_weights.h"

#include <cstring>

#include "ops/mixed.h"

namespace dsmoe {

namespace {

// In numbers that can be moved one by one.
Tensor movable(const Tensor& t) {
  return t.dtype() == DType::kF32 || t.dtype() == DType::kBF16 ? t : ops::dequantized(t, DType::kF32);
}

// to(i) = from(i) for all heads, rows and columns: `at` gives the numbers' places in both.
template <class At>
void move_numbers(const Tensor& from, Tensor& to, Index heads, Index rows, Index columns, At at) {
  const std::size_t size = size_of(from.dtype());
  const auto* const source = static_cast<const char*>(from.raw());
  auto* const target = static_cast<char*>(to.raw_mutable());
  for (Index h = 0; h < heads; ++h)
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < columns; ++c) {
        const auto [a, b] = at(h, r, c);
        std::memcpy(target + static_cast<std::size_t>(b) * size, source + static_cast<std::size_t>(a) * size, size);
      }
}

// Where a number is in kv_b, and in the tensor of keys; row: of the head's keys or values.
struct LatentPlaces {
  const LatentSizes& l;
  Index whole(Index head, Index row, Index column) const { return (head * (l.nope + l.value) + row) * l.rank + column; }
  Index keys(Index head, Index row, Index column) const { return (head * l.rank + column) * l.nope + row; }
  Index values(Index head, Index row, Index column) const { return (head * l.value + row) * l.rank + column; }
};

}  // namespace

Tensor latent_keys(const Tensor& kv_b, const LatentSizes& l) {
  const Tensor from = movable(kv_b);
  Tensor to(from.dtype(), {l.heads * l.rank, l.nope});
  const LatentPlaces at{l};
  move_numbers(from, to, l.heads, l.nope, l.rank,
               [&](Index h, Index r, Index c) { return std::pair(at.whole(h, r, c), at.keys(h, r, c)); });
  return to;
}

Tensor latent_values(const Tensor& kv_b, const LatentSizes& l) {
  const Tensor from = movable(kv_b);
  Tensor to(from.dtype(), {l.heads * l.value, l.rank});
  const LatentPlaces at{l};
  move_numbers(from, to, l.heads, l.value, l.rank,
               [&](Index h, Index r, Index c) { return std::pair(at.whole(h, l.nope + r, c), at.values(h, r, c)); });
  return to;
}

LatentSizes LatentWeights::sizes() const {
  const Index rank = values.dim(1), heads = keys.dim(0) / rank;
  return {heads, keys.dim(1), values.dim(0) / heads, rank};
}

Tensor LatentWeights::whole() const {
  if (!in_parts()) return weight;
  const LatentSizes l = sizes();
  Tensor k = movable(keys), v = movable(values);
  if (k.dtype() != v.dtype()) k = k.to(DType::kF32), v = v.to(DType::kF32);
  Tensor out(k.dtype(), {l.heads * (l.nope + l.value), l.rank});
  const LatentPlaces at{l};
  move_numbers(k, out, l.heads, l.nope, l.rank,
               [&](Index h, Index r, Index c) { return std::pair(at.keys(h, r, c), at.whole(h, r, c)); });
  move_numbers(v, out, l.heads, l.value, l.rank,
               [&](Index h, Index r, Index c) { return std::pair(at.values(h, r, c), at.whole(h, l.nope + r, c)); });
  return out;
}

}  // namespace dsmoe
