#include <vector>

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

// One block per distinct id: the rows of its tokens, which `order` lists in order, are added up one after another.
template <int kVector>
__global__ void __launch_bounds__(kThreads)
    embedding_backward_kernel(const std::int32_t* ids, const std::int32_t* order, const std::int32_t* first, int width,
                              const float* dx, float* dtable) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const int begin = first[blockIdx.x], end = first[blockIdx.x + 1];
  float* const to = dtable + static_cast<Index>(ids[order[begin]]) * width;
  for (int c = threadIdx.x * kVector; c < width; c += kThreads * kVector) {
    auto sum = gpu::load<kVector>(to + c);
#pragma unroll 8
    for (int i = begin; i < end; ++i) {
      const auto in = gpu::load<kVector>(dx + static_cast<Index>(order[i]) * width + c);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum.v[j] = __fadd_rn(sum.v[j], in.v[j]);
    }
    gpu::store(sum, to + c);
  }
}

// Tokens in the order of their ids, those of one id in their own order, and where each id that occurs begins: on this
// machine, beside the GPU's work.
struct ById {
  std::vector<std::int32_t> order, first;
};
ById sorted_by_id(std::span<const std::int32_t> ids, Index vocab) {
  std::vector<std::int32_t> next(static_cast<std::size_t>(vocab) + 1);
  for (const std::int32_t id : ids) ++next[static_cast<std::size_t>(id) + 1];
  ById by;
  for (std::size_t v = 0; v < static_cast<std::size_t>(vocab); ++v) {
    if (next[v + 1] > 0) by.first.push_back(next[v]);
    next[v + 1] += next[v];
  }
  by.first.push_back(static_cast<std::int32_t>(ids.size()));
  by.order.resize(ids.size());
  for (std::size_t t = 0; t < ids.size(); ++t)
    by.order[static_cast<std::size_t>(next[static_cast<std::size_t>(ids[t])]++)] = static_cast<std::int32_t>(t);
  return by;
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

void embedding_backward(Context& ctx, const Tensor& ids, const Tensor& dx, Tensor& dtable) {
  if (dx.numel() == 0) return;
  const Tensor here = ids.device() == Device::kCpu ? ids : ctx.fetch(ids);
  const ById by = sorted_by_id(here.span<std::int32_t>(), dtable.dim(0));
  const auto place = [&](const std::vector<std::int32_t>& v) {
    return ctx.place(Tensor::view_of(std::span<const std::int32_t>(v)));
  };
  const Tensor placed = ctx.place(ids), order = place(by.order), first = place(by.first);
  const auto numbers = [](const Tensor& t) { return static_cast<const std::int32_t*>(t.raw()); };
  const auto width = static_cast<int>(dtable.dim(1));
  gpu::launch(width % 4 == 0 ? embedding_backward_kernel<4> : embedding_backward_kernel<1>,
              static_cast<unsigned>(by.first.size() - 1), kThreads, 0, ctx.stream(), numbers(placed), numbers(order),
              numbers(first), width, static_cast<const float*>(dx.raw()), static_cast<float*>(dtable.raw_mutable()));
}

}  // namespace dsmoe::ops::cuda
