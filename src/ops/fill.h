// Random numbers made where the work runs, for benchmarks of models that are nowhere on disk: normal with this mean and
// deviation. They depend on (seed, place) alone, but those of a GPU are not the CPU's.
#pragma once

#include <cstdint>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

// x is f32 or bf16.
void fill_normal(Context& ctx, Tensor& x, float mean, float deviation, std::uint64_t seed);

namespace cuda {
void fill_normal(Context& ctx, Tensor& x, float mean, float deviation, std::uint64_t seed);
}

}  // namespace dsmoe::ops
