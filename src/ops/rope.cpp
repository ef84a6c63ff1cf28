#include "ops/rope.h"

#include <cmath>
#include <vector>

#include "core/fail.h"

namespace dsmoe::ops {

RopeTable make_rope_table(Index head_dim, double theta, const RopeScaling& scaling, Index max_position_embeddings,
                          Index length) {
  require(head_dim > 0 && head_dim % 2 == 0, "[rope] head_dim is {}, expected an even number over 0", head_dim);
  require(std::isfinite(theta) && theta > 0, "[rope] theta is {}, expected a number over 0", theta);
  require(length >= 0, "[rope] the table's length is {}, expected 0 or more", length);
  require(scaling.type == RopeScalingType::kNone || (std::isfinite(scaling.factor) && scaling.factor >= 1),
          "[rope] the scaling factor is {}, expected 1 or more", scaling.factor);
  const auto dim = static_cast<double>(head_dim);
  if (scaling.type == RopeScalingType::kDynamic && length > max_position_embeddings) {
    require(max_position_embeddings > 0 && head_dim > 2,
            "[rope] dynamic scaling needs head_dim over 2 and max_position_embeddings over 0, got {} and {}", head_dim,
            max_position_embeddings);
    const double stretch =
        scaling.factor * static_cast<double>(length) / static_cast<double>(max_position_embeddings) - (scaling.factor - 1);
    theta *= std::pow(stretch, dim / (dim - 2));
  }
  // Rounded to f32 where the reference does: the exponent, the power, its inverse, and the angle.
  const Index half = head_dim / 2;
  std::vector<float> inverse(static_cast<std::size_t>(half));
  for (Index i = 0; i < half; ++i) {
    const auto exponent = static_cast<float>(static_cast<double>(2 * i) / dim);
    inverse[static_cast<std::size_t>(i)] = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  RopeTable table{Tensor(DType::kF32, {length, half}), Tensor(DType::kF32, {length, half})};
  float *const cos = table.cos.data<float>(), *const sin = table.sin.data<float>();
  const float divisor = scaling.type == RopeScalingType::kLinear ? static_cast<float>(scaling.factor) : 1.0f;
  for (Index p = 0; p < length; ++p) {
    const float position = static_cast<float>(p) / divisor;
    for (Index i = 0; i < half; ++i) {
      const double angle = position * inverse[static_cast<std::size_t>(i)];  // the product is f32
      cos[p * half + i] = static_cast<float>(std::cos(angle));
      sin[p * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

void apply_rope(Context& ctx, Tensor& x, const RopeTable& table, std::span<const std::int32_t> positions, bool inverse) {
  const auto tokens = static_cast<Index>(positions.size());
  require(x.rank() >= 2 && x.dim(0) == tokens && (tokens == 0 || x.numel() / tokens % table.head_dim() == 0),
          "[rope] x is {}, expected {} tokens with heads of {}", x.shape(), tokens, table.head_dim());
  for (Index t = 0; t < tokens; ++t) {
    const std::int32_t position = positions[static_cast<std::size_t>(t)];
    require(0 <= position && position < table.positions(), "[rope] token {} has position {}, the table ends at {}", t,
            position, table.positions());
  }
  ctx.backend() == Backend::kRef ? ref::apply_rope(x, table, positions, inverse)
                                 : cpu::apply_rope(ctx, x, table, positions, inverse);
}

}  // namespace dsmoe::ops
