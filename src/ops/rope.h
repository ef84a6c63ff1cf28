// Rotary position embedding: element i of a head and element i + head_dim / 2 are turned together by the angle
// position * theta^(-2 i / head_dim).
#pragma once

#include <cstdint>
#include <span>

#include "dsmoe/context.h"
#include "dsmoe/rope_scaling.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

struct RopeTable {
  Tensor cos, sin;  // [positions, head_dim / 2] f32

  Index positions() const { return cos.dim(0); }
  Index head_dim() const { return 2 * cos.dim(1); }
};

// Positions [0, length). Linear scaling divides positions by the factor. Dynamic scaling stretches theta when
// `length` is over max_position_embeddings, so the table of a longer text turns its first positions otherwise, too.
RopeTable make_rope_table(Index head_dim, double theta, const RopeScaling& scaling, Index max_position_embeddings,
                          Index length);

// Turns x [T, H, head_dim] (or [T, H * head_dim]; f32 or bf16) in place, token t by the angles of positions[t].
// inverse turns back, which is also the gradient: d(before) from d(after).
void apply_rope(Context& ctx, Tensor& x, const RopeTable& table, std::span<const std::int32_t> positions,
                bool inverse = false);

namespace ref {
void apply_rope(Tensor& x, const RopeTable& table, std::span<const std::int32_t> positions, bool inverse);
}
namespace cpu {
void apply_rope(Context& ctx, Tensor& x, const RopeTable& table, std::span<const std::int32_t> positions, bool inverse);
}

}  // namespace dsmoe::ops
