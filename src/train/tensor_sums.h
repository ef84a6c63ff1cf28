// Numbers that are moved between ranks where the work runs.
#pragma once

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"
#include "parallel/comm.h"

namespace dsmoe::train {

// to = from, of one dtype and number, wherever in a larger tensor they begin.
void copy(Context& ctx, const Tensor& from, Tensor to);

// Every rank's share of the numbers to all, f32 or bf16, contiguous.
void all_gather_shares(Context& ctx, parallel::Comm& comm, const Tensor& values);

}  // namespace dsmoe::train
