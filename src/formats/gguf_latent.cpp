#include "formats/gguf_latent.h"

#include <fmt/format.h>

#include <cstring>

#include "core/fail.h"
#include "formats/gguf_rows.h"

namespace dsmoe {

namespace {

// In numbers that can be moved one by one.
Tensor movable(const Tensor& t) {
  return t.dtype() == DType::kF32 || t.dtype() == DType::kBF16 ? t : to_plain(t, DType::kF32);
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
  const LatentTensors& l;
  Index whole(Index head, Index row, Index column) const { return (head * (l.nope + l.value) + row) * l.rank + column; }
  Index keys(Index head, Index row, Index column) const { return (head * l.rank + column) * l.nope + row; }
  Index values(Index head, Index row, Index column) const { return (head * l.value + row) * l.rank + column; }
};

Tensor checked_part(const io::GgufFile& file, const std::string& name, const Shape& shape) {
  const Tensor t = file.tensor(name);
  if (t.shape() != shape)
    fail(ErrorCode::kFormat, "{}: tensor '{}' is {}, expected {}", file.path(), name, t.shape(), shape);
  if (t.dtype() == DType::kI32 || t.dtype() == DType::kI64 || t.dtype() == DType::kF64)
    fail(ErrorCode::kUnsupported, "{}: tensor '{}' is {}, which is not supported for it", file.path(), name,
         to_string(t.dtype()));
  return movable(t);
}

}  // namespace

LatentTensors LatentTensors::of(const MlaSpec& s, Index layer) {
  const auto name = [&](const char* what) { return fmt::format("blk.{}.attn_{}.weight", layer, what); };
  return {name("k_b"), name("v_b"), name("kv_b"), s.heads, s.nope, s.value, s.kv_rank};
}

Tensor latent_keys(const Tensor& kv_b, const LatentTensors& l) {
  const Tensor from = movable(kv_b);
  Tensor to(from.dtype(), {l.heads * l.rank, l.nope});
  const LatentPlaces at{l};
  move_numbers(from, to, l.heads, l.nope, l.rank,
               [&](Index h, Index r, Index c) { return std::pair(at.whole(h, r, c), at.keys(h, r, c)); });
  return to;
}

Tensor latent_values(const Tensor& kv_b, const LatentTensors& l) {
  const Tensor from = movable(kv_b);
  Tensor to(from.dtype(), {l.heads * l.value, l.rank});
  const LatentPlaces at{l};
  move_numbers(from, to, l.heads, l.value, l.rank,
               [&](Index h, Index r, Index c) { return std::pair(at.whole(h, l.nope + r, c), at.values(h, r, c)); });
  return to;
}

Tensor read_latent(const io::GgufFile& file, const LatentTensors& l) {
  const Shape shape{l.heads * (l.nope + l.value), l.rank};
  if (file.contains(l.whole)) return checked_part(file, l.whole, shape);
  Tensor keys = checked_part(file, l.keys, l.keys_shape()), values = checked_part(file, l.values, l.values_shape());
  if (keys.dtype() != values.dtype()) keys = keys.to(DType::kF32), values = values.to(DType::kF32);
  Tensor out(keys.dtype(), shape);
  const LatentPlaces at{l};
  move_numbers(keys, out, l.heads, l.nope, l.rank,
               [&](Index h, Index r, Index c) { return std::pair(at.keys(h, r, c), at.whole(h, r, c)); });
  move_numbers(values, out, l.heads, l.value, l.rank,
               [&](Index h, Index r, Index c) { return std::pair(at.values(h, r, c), at.whole(h, l.nope + r, c)); });
  return out;
}

}  // namespace dsmoe
