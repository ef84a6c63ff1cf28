#include "model/row_order.h"

#include <cstring>

#include "core/fail.h"

namespace dsmoe {

namespace {

template <class Copy>
Tensor reordered(const Tensor& from, const RowOrder& order, Copy copy) {
  if (!order.changes()) return from;
  require(from.rank() >= 1 && from.dim(0) % order.head_dim == 0, "rows of {} are no whole heads of {}", from.shape(),
          order.head_dim);
  Tensor to(from.dtype(), from.shape());
  if (from.numel() == 0) return to;
  const std::size_t bytes = from.bytes() / static_cast<std::size_t>(from.dim(0));
  for (Index r = 0; r < from.dim(0); ++r) {
    const auto [a, b] = copy(r, order.in_file(r));
    std::memcpy(static_cast<char*>(to.raw_mutable()) + static_cast<std::size_t>(a) * bytes,
                static_cast<const char*>(from.raw()) + static_cast<std::size_t>(b) * bytes, bytes);
  }
  return to;
}

}  // namespace

Index RowOrder::in_file(Index row) const {
  if (!changes()) return row;
  const Index in_head = row % head_dim - before, head = row - in_head;
  if (in_head < 0) return row;
  const Index half = (head_dim - before) / 2, turned = rotary / 2;
  const Index pair = in_head % half, second = in_head / half;
  if (pair < turned) return head + (pairs ? 2 * pair + second : pair + second * turned);
  return head + rotary + pair - turned + second * (half - turned);
}

RowOrder row_order(const Parameter& p, bool pairs) { return {p.traits.head_dim, p.traits.rotary, pairs, p.traits.before}; }

Tensor to_memory_order(const Tensor& tensor, const RowOrder& order) {
  return reordered(tensor, order, [](Index memory, Index file) { return std::pair(memory, file); });
}

Tensor to_file_order(const Tensor& tensor, const RowOrder& order) {
  return reordered(tensor, order, [](Index memory, Index file) { return std::pair(file, memory); });
}

}  // namespace dsmoe
