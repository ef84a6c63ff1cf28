#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/fail.h"
#include "ops/backend.h"

namespace dsmoe::ops {

Rope::Rope(Index head_dim, double theta, const RopeScaling& scaling, Index max_position_embeddings, Index rotary)
    : head_dim_(head_dim),
      rotary_(rotary > 0 ? rotary : head_dim),
      theta_(theta),
      scaling_(scaling),
      max_position_embeddings_(max_position_embeddings),
      angle_factor_(static_cast<float>(scaling.angle_factor())) {
  require(head_dim > 0 && head_dim % 2 == 0, "[rope] head_dim is {}, expected an even number over 0", head_dim);
  require(rotary_ % 2 == 0 && rotary_ <= head_dim, "[rope] {} numbers of a head of {} are turned, expected an even part",
          rotary_, head_dim);
  require(std::isfinite(theta) && theta > 0, "[rope] theta is {}, expected a number over 0", theta);
  require(scaling.type == RopeScalingType::kNone || (std::isfinite(scaling.factor) && scaling.factor >= 1),
          "[rope] the scaling factor is {}, expected 1 or more", scaling.factor);
  require(!scaling.alpha || (std::isfinite(*scaling.alpha) && *scaling.alpha > 0 && rotary_ > 2),
          "[rope] alpha is {} and {} numbers of a head are turned, expected an alpha over 0 and more than 2 numbers",
          scaling.alpha.value_or(0), rotary_);
  frequencies_ = scaling.type == RopeScalingType::kYarn ? yarn_frequencies() : frequencies_of(scaling.base(theta, rotary_));
}

// In f32 from the frequencies on, as the reference.
std::vector<float> Rope::yarn_frequencies() const {
  const auto dim = static_cast<double>(rotary_);
  const auto length = static_cast<double>(scaling_.original_max_positions.value_or(max_position_embeddings_));
  require(length > 0 && scaling_.beta_fast > 0 && scaling_.beta_slow > 0 && theta_ != 1,
          "[rope] YaRN from {} positions on, with beta_fast {}, beta_slow {} and theta {}", length, scaling_.beta_fast,
          scaling_.beta_slow, theta_);
  // The pair that turns so many times over the original length.
  const auto pair_of = [&](double turns) {
    return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta_));
  };
  double low = pair_of(scaling_.beta_fast), high = pair_of(scaling_.beta_slow);
  if (scaling_.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // both betas alike
  std::vector<float> out = frequencies_of(theta_);
  for (Index i = 0; i < rotary_ / 2; ++i) {
    float& frequency = out[static_cast<std::size_t>(i)];
    const float power =
        static_cast<float>(std::pow(theta_, static_cast<double>(static_cast<float>(static_cast<double>(2 * i) / dim))));
    const float stretched = 1.0f / (static_cast<float>(scaling_.factor) * power);
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float kept = 1 - ramp;
    frequency = stretched * (1 - kept) + frequency * kept;
  }
  return out;
}

std::vector<float> Rope::frequencies_of(double theta) const {
  // Rounded to f32 where the reference does: the exponent, the power, its inverse, and (below) the angle.
  const auto dim = static_cast<double>(rotary_);
  std::vector<float> out;
  for (Index i = 0; i < rotary_ / 2; ++i) {
    const auto exponent = static_cast<float>(static_cast<double>(2 * i) / dim);
    out.push_back(1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent))));
  }
  out.resize(static_cast<std::size_t>(head_dim_ / 2));  // an angle of 0: cosine 1, sine 0
  return out;
}

std::vector<float> Rope::frequencies(Index context) const {
  if (!scaled_by(context)) return frequencies_;
  require(max_position_embeddings_ > 0 && rotary_ > 2,
          "[rope] dynamic scaling needs head_dim over 2 and max_position_embeddings over 0, got {} and {}", rotary_,
          max_position_embeddings_);
  const auto dim = static_cast<double>(rotary_);
  const double stretch = scaling_.factor * static_cast<double>(context) / static_cast<double>(max_position_embeddings_) -
                         (scaling_.factor - 1);
  return frequencies_of(theta_ * std::pow(stretch, dim / (dim - 2)));
}

void Rope::turn(Index position, std::span<const float> frequencies, float* cos, float* sin) const {
  const float place = static_cast<float>(position) / divisor();
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double angle = place * frequencies[i];  // the product is f32
    const float factor = static_cast<Index>(i) < turned_pairs() ? angle_factor_ : 1.0f;
    cos[i] = factor * static_cast<float>(std::cos(angle));
    sin[i] = factor * static_cast<float>(std::sin(angle));
  }
}

RopeAngles rope_angles(Context& ctx, const Rope& rope, const Slices& slices) {
  Index rows = 0;
  for (const Slice& s : slices) {
    require(s.first_row == rows && s.rows >= 0 && s.first_position >= 0,
            "[rope] a slice of {} rows at position {} begins at row {}, expected row {}", s.rows, s.first_position,
            s.first_row, rows);
    require(!rope.scaled_by(s.length()) || s.length() <= s.context,
            "[rope] {} tokens of a sequence that was opened for {}; the angles of dynamic scaling depend on that number",
            s.length(), s.context);
    rows += s.rows;
  }
  const Shape shape{rows, rope.head_dim() / 2};
  RopeAngles angles{ctx.empty(DType::kF32, shape), ctx.empty(DType::kF32, shape)};
  on_backend(
      ctx, [&] { ref::rope_angles(rope, slices, angles); }, [&] { cpu::rope_angles(ctx, rope, slices, angles); },
      [&] { cuda::rope_angles(ctx, rope, slices, angles); });
  return angles;
}

void apply_rope(Context& ctx, Tensor& x, const RopeAngles& angles, bool inverse) {
  const Index tokens = angles.rows();
  require(x.rank() >= 2 && x.dim(0) == tokens && (tokens == 0 || x.numel() / tokens % angles.head_dim() == 0),
          "[rope] x is {}, expected {} tokens with heads of {}", x.shape(), tokens, angles.head_dim());
  on_backend(
      ctx, [&] { ref::apply_rope(x, angles, inverse); }, [&] { cpu::apply_rope(ctx, x, angles, inverse); },
      [&] { cuda::apply_rope(ctx, x, angles, inverse); });
}

}  // namespace dsmoe::ops
