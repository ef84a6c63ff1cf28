// The learning rate of each step.
#pragma once

#include "dsmoe/train_options.h"

namespace dsmoe::train {

// Of step `step` (from 0) of `total`. All schedules first rise linearly over the warm-up: step i has (i + 1) / warmup of
// the rate.
double learning_rate(LrSchedule schedule, double rate, Index warmup, Index step, Index total);

}  // namespace dsmoe::train
