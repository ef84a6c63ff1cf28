// Rows of a table by number: table [V, D] in any dtype that weights have, x [T, D] f32.
#pragma once

#include <cstdint>
#include <span>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

// x[t] = table[ids[t]], ids [T] i32. An id outside the table gives an Error with its position.
void embedding(Context& ctx, const Tensor& table, const Tensor& ids, Tensor& x);

// dtable [V, D] f32: row ids[t] += dx[t], in the order of t.
void embedding_backward(Context& ctx, const Tensor& ids, const Tensor& dx, Tensor& dtable);

namespace ref {
void embedding(const Tensor& table, std::span<const std::int32_t> ids, Tensor& x);
void embedding_backward(std::span<const std::int32_t> ids, const Tensor& dx, Tensor& dtable);
}  // namespace ref

namespace cpu {
void embedding(Context& ctx, const Tensor& table, std::span<const std::int32_t> ids, Tensor& x);
void embedding_backward(Context& ctx, std::span<const std::int32_t> ids, const Tensor& dx, Tensor& dtable);
}  // namespace cpu

namespace cuda {
void embedding(Context& ctx, const Tensor& table, const Tensor& ids, Tensor& x);
void embedding_backward(Context& ctx, const Tensor& ids, const Tensor& dx, Tensor& dtable);
}  // namespace cuda

}  // namespace dsmoe::ops
