// What this machine can do at most, measured: the bound that every speed is given against.
#pragma once

#include "dsmoe/context.h"
#include "dsmoe/dtype.h"

namespace dsmoe::cpu {

// Operations per second of all threads together, multiply-adds in registers only; for bf16 the dot products of pairs
// where the processor has them, for quantized types those of 8-bit integers, and for both products of tiles where it has
// those.
double peak_flops(Context& ctx, DType dtype, double seconds = 0.05);

// Bytes per second that all threads together read from memory, in long streams.
double read_bandwidth(Context& ctx, double seconds = 0.2);

}  // namespace dsmoe::cpu
