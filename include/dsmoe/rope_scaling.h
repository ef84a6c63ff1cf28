// RoPE scaling: how rotary positions are stretched beyond the length that a model was trained for.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace dsmoe {

enum class RopeScalingType : std::uint8_t { kNone, kLinear, kDynamic, kYarn };

struct RopeScaling {
  RopeScalingType type = RopeScalingType::kNone;
  double factor = 1.0;  // over 1 unless there is no scaling
  // Of dynamic scaling: theta is stretched by this once and for all, whatever the length (Hunyuan); the factor is not used.
  std::optional<double> alpha = {};

  // Of YaRN. Pairs that turn more than beta_fast times over the original length keep their frequencies, those that turn
  // less than beta_slow times have theirs divided by the factor, and between there is a ramp.
  double beta_fast = 32, beta_slow = 1;
  std::optional<std::int64_t> original_max_positions = {};  // none: max_position_embeddings
  std::optional<double> mscale = {}, mscale_all_dim = {};
  std::optional<double> attention_factor = {};  // of cosines and sines; none: it follows from the others
  bool truncate = true;                         // the ramp begins and ends at whole pairs

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;

  bool by_length() const { return type == RopeScalingType::kDynamic && !alpha; }
  // What takes the place of theta where so many numbers of a head are turned; alone, lengths aside.
  double base(double theta, std::int64_t rotary) const {
    const auto dim = static_cast<double>(rotary);
    return type == RopeScalingType::kDynamic && alpha ? theta * std::pow(*alpha, dim / (dim - 2)) : theta;
  }
  // How much YaRN sharpens attention for a stretch, with a weight of its own.
  double sharpness(double weight) const { return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1; }
  // What cosines and sines are multiplied with.
  double angle_factor() const {
    if (type != RopeScalingType::kYarn) return 1;
    if (attention_factor) return *attention_factor;
    const bool both = mscale.value_or(0) != 0 && mscale_all_dim.value_or(0) != 0;
    return both ? sharpness(*mscale) / sharpness(*mscale_all_dim) : sharpness(1);
  }
  // What latent attention (MLA) multiplies its scores with besides.
  double score_factor() const {
    const bool scaled = type != RopeScalingType::kNone && mscale_all_dim.value_or(0) != 0;
    return scaled ? sharpness(*mscale_all_dim) * sharpness(*mscale_all_dim) : 1;
  }
};

}  // namespace dsmoe
