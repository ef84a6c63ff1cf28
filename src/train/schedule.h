// The learning rate of each step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dsmoe/tensor.h"

namespace dsmoe::train {

enum class LrSchedule : std::uint8_t {
  kConstant,
  kCosine,  // down to a tenth at the end
  kPaper,   // times 0.316 after 80% of the steps, and again after 90%
};
LrSchedule parse_schedule(std::string_view name);  // "constant", "cosine", "paper"

// Of step `step` (from 0) of `total`. All schedules first rise linearly over the warm-up: step i has (i + 1) / warmup of
// the rate.
double learning_rate(LrSchedule schedule, double rate, Index warmup, Index step, Index total);

}  // namespace dsmoe::train
