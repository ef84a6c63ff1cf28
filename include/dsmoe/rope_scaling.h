// RoPE scaling: how rotary positions are stretched beyond the length that a model was trained for.
#pragma once

#include <cstdint>

namespace dsmoe {

enum class RopeScalingType : std::uint8_t { kNone, kLinear, kDynamic };

struct RopeScaling {
  RopeScalingType type = RopeScalingType::kNone;
  double factor = 1.0;  // over 1 unless there is no scaling
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

}  // namespace dsmoe
