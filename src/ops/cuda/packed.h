// Launchers of the kernels that read quantized matrices packed (packed_blocks.h). Pointers are device pointers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "dsmoe/dtype.h"
#include "dsmoe/experts.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/plan.h"

namespace dsmoe::cuda::packed {

using bf16 = __nv_bfloat16;

// W [rows, columns], quantized; rows are a multiple of 8 in memory.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kQ8_0;
  int rows = 0, columns = 0;
};
Matrix matrix_of(const Tensor& w);

// GGUF blocks of whole rows into tiles, rows that are no multiple of 8 padded with zeros.
void pack(DType dtype, const void* blocks, int rows, int columns, void* to, cudaStream_t stream);

// As bf16. Number (r, k) goes to (r / group) * group_stride + (r % group) * ld + (k / part) * part_stride + k % part.
// Where `offsets` is not null, rows of group g are left out when offsets[g] = offsets[g + 1]: nobody has chosen the expert.
struct Unpacked {
  bf16* to;
  int group, part;
  Index group_stride, ld, part_stride;
  const std::int32_t* offsets;
};
void unpack(const Matrix& w, const Unpacked& out, cudaStream_t stream);
// Between unpack() and kernels that take weights before they wait for the kernel ahead: those may then.
void end_unpacking(cudaStream_t stream);

// x[t] = row ids[t] of the table, as f32 with the value that bf16 has. Faults as in ops/embedding.h.
void embedding(const Matrix& table, const std::int32_t* ids, int tokens, unsigned long long fault,
               unsigned long long* faults, float* x, cudaStream_t stream);

// y = x · Wᵀ for at most kFewRows rows and kMostProjections matrices: the same bits as the bf16 kernels give for what
// unpack() makes of W.
inline constexpr int kFewRows = 16, kMostProjections = 3;
// So many rows of x fit into a block's shared memory; at most kFewRows.
int rows_at_once(int rows, int columns);
struct Product {
  Matrix w;
  void* y;
  bool f32;
};
void linear_few(const LinearSizes& s, const bf16* x, std::span<const Product> products, cudaStream_t stream);

// The same for q, k and v of new tokens, as hopper::project_few(): y of k and v is the cache. False where it does not fit.
bool project_few(const LinearSizes& s, const bf16* x, std::span<const Product, 3> qkv, const hopper::TurnAndStore& turn,
                 cudaStream_t stream);

// The grouped products of few tokens as in hopper.h, over all experts of a layer. The S shared ones are one wide MLP.
struct ExpertMatrices {
  Matrix shared, routed;
};
void gate_up_few(const Sizes& s, const PlanView& plan, const bf16* x, const ExpertMatrices& gate, const ExpertMatrices& up,
                 bf16* h, cudaStream_t stream);
// One row per token for all shared experts, then the routed rows.
void down_few(const Sizes& s, const PlanView& plan, const bf16* h, const ExpertMatrices& down, bf16* out,
              cudaStream_t stream);
// The same for one token, where it fits, with the sum over its experts; weight [K].
bool is_one_token(const Sizes& s);
void down_one(const Sizes& s, const PlanView& plan, const bf16* h, const ExpertMatrices& down, const float* weight, bf16* y,
              cudaStream_t stream);

}  // namespace dsmoe::cuda::packed
