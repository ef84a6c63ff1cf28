#include "ops/pack.h"

#include <algorithm>

#include "core/cuda_error.h"
#include "core/device.h"
#include "core/fail.h"
#include "ops/cuda/device.h"
#include "ops/cuda/packed.h"
#include "ops/cuda/packed_blocks.h"

namespace dsmoe::cuda::packed {

int rows_at_once(int rows, int columns) {
  int device = 0, limit = 0;
  check_cuda(cudaGetDevice(&device), "device");
  check_cuda(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "attribute");
  const int fit = (limit - 2048) / row_pitch(columns);  // 2048: the system's, and static memory
  require(fit > 0, "rows of {} numbers are too long for the shared memory of this GPU", columns);
  return std::min({rows, kFewRows, fit});
}

}  // namespace dsmoe::cuda::packed

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

// Room for whole tiles: the rows past the last are zeros.
Tensor room(Context& ctx, DType dtype, Index rows, Index columns) {
  constexpr Index kTile = gpu::packed::kTileRows;
  const Tensor padded = ctx.empty(dtype, {(rows + kTile - 1) / kTile * kTile, columns});
  return padded.rows(0, rows);
}

char* at(Tensor& t, std::size_t bytes) { return static_cast<char*>(t.raw_mutable()) + bytes; }

}  // namespace

Tensor packed(Context& ctx, std::span<const Tensor> matrices) {
  require(gpu::device_info().major >= 8, "quantized weights on a GPU need sm_80 or newer; load the model as f32 or bf16");
  const Tensor& first = matrices.front();
  const Index rows = first.dim(0), columns = first.dim(1), count = static_cast<Index>(matrices.size());
  Tensor out = room(ctx, first.dtype(), count * rows, columns);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const Tensor blocks = ctx.place(matrices[i]);
    gpu::packed::pack(first.dtype(), blocks.raw(), static_cast<int>(rows), static_cast<int>(columns),
                      at(out, i * first.bytes()), ctx.stream());
  }
  return out;
}

Tensor unpacked(Context& ctx, const Tensor& w) {
  Tensor out = ctx.empty(DType::kBF16, w.shape());
  const int rows = static_cast<int>(w.dim(0)), columns = static_cast<int>(w.dim(1));
  gpu::packed::unpack(gpu::packed::matrix_of(w),
                      {static_cast<gpu::packed::bf16*>(out.raw_mutable()), rows, columns, 0, columns, 0, nullptr},
                      ctx.stream());
  gpu::packed::end_unpacking(ctx.stream());
  return out;
}

Tensor packed_repeat(Context& ctx, const Tensor& some, Index rows) {
  Tensor out = room(ctx, some.dtype(), rows, some.dim(1));
  constexpr Index kTile = gpu::packed::kTileRows;
  const std::size_t all = row_bytes(some.dtype(), (rows + kTile - 1) / kTile * kTile * some.dim(1));
  std::size_t done = std::min(all, some.bytes());
  device::copy(at(out, 0), Device::kCuda, some.raw(), Device::kCuda, done, ctx.stream());
  while (done < all) {
    const std::size_t more = std::min(done, all - done);
    device::copy(at(out, done), Device::kCuda, out.raw(), Device::kCuda, more, ctx.stream());
    done += more;
  }
  return out;
}

}  // namespace dsmoe::ops::cuda
