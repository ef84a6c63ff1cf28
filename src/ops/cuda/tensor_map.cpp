#include "ops/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "core/fail.h"

namespace dsmoe::cuda {

namespace {

// The driver's function, found at run time so that nothing links against libcuda.
auto encode_function() {
  static const auto function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess)
      fail(ErrorCode::kUnsupported, "the CUDA driver has no cuTensorMapEncodeTiled; install a driver for CUDA 12 or newer");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(address);
  }();
  return function;
}

}  // namespace

bool try_tensor_map(CUtensorMap* map, const void* base, std::initializer_list<std::uint64_t> sizes,
                    std::initializer_list<std::uint64_t> strides, std::initializer_list<std::uint32_t> box) {
  std::array<cuuint64_t, 5> dims{}, bytes{};
  std::array<cuuint32_t, 5> extent{}, step{1, 1, 1, 1, 1};
  std::copy(sizes.begin(), sizes.end(), dims.begin());
  std::transform(strides.begin(), strides.end(), bytes.begin(), [](std::uint64_t s) { return s * 2; });
  std::copy(box.begin(), box.end(), extent.begin());
  const CUresult result = encode_function()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(sizes.size()),
                                            const_cast<void*>(base), dims.data(), bytes.data(), extent.data(), step.data(),
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS;
}

CUtensorMap tensor_map(const void* base, std::initializer_list<std::uint64_t> sizes,
                       std::initializer_list<std::uint64_t> strides, std::initializer_list<std::uint32_t> box) {
  CUtensorMap map;
  invariant(try_tensor_map(&map, base, sizes, strides, box), "the driver refused a tensor map");
  return map;
}

}  // namespace dsmoe::cuda
