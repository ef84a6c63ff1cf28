// Sums over ranks of tensors where the work runs. What parallel/comm.h has for this machine's memory, and the same order: a
// number becomes ((rank 0's + rank 1's) + rank 2's) + ..., on a GPU by our own kernel.
#pragma once

#include <span>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"
#include "parallel/comm.h"

namespace dsmoe::train {

// to = from, of one dtype and number, wherever in a larger tensor they begin.
void copy(Context& ctx, const Tensor& from, Tensor to);

// f32, contiguous. Small ones travel together: sums are per number, so it makes no difference to them.
void all_reduce(Context& ctx, parallel::Comm& comm, std::span<const Tensor> tensors);
// Each rank gets the sums of its share of the numbers.
void reduce_scatter(Context& ctx, parallel::Comm& comm, const Tensor& values);
// The way back, f32 or bf16.
void all_gather_shares(Context& ctx, parallel::Comm& comm, const Tensor& values);

}  // namespace dsmoe::train
