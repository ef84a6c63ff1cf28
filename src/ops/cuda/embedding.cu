#include "core/fault.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/packed.h"
#include "ops/cuda/ptx.cuh"
#include "ops/embedding.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

constexpr int kThreads = 256;

// One block per token. An id outside the table is reported, and its row is not read.
template <class T>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(const T* table, const std::int32_t* ids, int vocab, int width, unsigned long long fault,
                     unsigned long long* faults, float* x) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const std::int32_t id = ids[blockIdx.x];
  if (id < 0 || id >= vocab) {
    if (threadIdx.x == 0) atomicMin(faults, fault | blockIdx.x);
    return;
  }
  const T* const from = table + static_cast<Index>(id) * width;
  float* const to = x + static_cast<Index>(blockIdx.x) * width;
  for (int c = threadIdx.x; c < width; c += kThreads) to[c] = gpu::to_float(from[c]);
}

}  // namespace

void embedding(Context& ctx, const Tensor& table, const Tensor& ids, Tensor& x) {
  if (x.numel() == 0) return;
  const Tensor placed = ctx.place(ids);
  if (is_quantized(table.dtype()))
    return gpu::packed::embedding(gpu::packed::matrix_of(table), static_cast<const std::int32_t*>(placed.raw()),
                                  static_cast<int>(ids.numel()), fault_of(FaultCode::kNoSuchToken, -1), ctx.fault_word(),
                                  static_cast<float*>(x.raw_mutable()), ctx.stream());
  gpu::with_type(table.dtype(), [&]<class T>(T) {
    gpu::launch(embedding_kernel<T>, static_cast<unsigned>(ids.numel()), kThreads, 0, ctx.stream(),
                static_cast<const T*>(table.raw()), static_cast<const std::int32_t*>(placed.raw()),
                static_cast<int>(table.dim(0)), static_cast<int>(table.dim(1)), fault_of(FaultCode::kNoSuchToken, -1),
                ctx.fault_word(), static_cast<float*>(x.raw_mutable()));
  });
}

}  // namespace dsmoe::ops::cuda
