#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/fail.h"

namespace dsmoe::train {

double learning_rate(LrSchedule schedule, double rate, Index warmup, Index step, Index total) {
  if (step < warmup) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
  switch (schedule) {
    case LrSchedule::kConstant: return rate;
    case LrSchedule::kCosine: {
      constexpr double kFloor = 0.1;
      const double done = std::clamp(
          static_cast<double>(step - warmup) / static_cast<double>(std::max<Index>(1, total - warmup)), 0.0, 1.0);
      return rate * (kFloor + (1 - kFloor) * 0.5 * (1 + std::cos(std::numbers::pi * done)));
    }
    case LrSchedule::kPaper: return rate * (10 * step >= 9 * total ? 0.316 * 0.316 : 10 * step >= 8 * total ? 0.316 : 1.0);
  }
  fail(ErrorCode::kInternal, "unknown schedule {}", static_cast<int>(schedule));
}

}  // namespace dsmoe::train
