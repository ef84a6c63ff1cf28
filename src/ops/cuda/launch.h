// Launching a kernel: shared-memory limit, dependent launch, error check.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "core/cuda_error.h"
#include "ops/cuda/device.h"

namespace dsmoe::cuda {

inline int multiprocessors() { return device_info().multiprocessors; }

template <class... Params, class... Args>
void launch_clusters(int cluster, void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes, cudaStream_t stream,
                     Args&&... args) {
  if (shared_bytes > 48 * 1024)
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), "shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = device_info().major >= 9;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Params(args)...), "launch");
}

// A kernel launched this way may start before the one ahead of it has ended: it calls wait_for_previous_kernel() before it
// reads anything that kernel wrote, or writes anything that kernel reads. Before that it may read weights, and what was
// complete before the pass began: tables, and the keys and values of earlier passes. A kernel that writes before it waits
// (gate_up, for the shared experts) must therefore not be given memory that was released while the kernels ahead of it
// still use it: of gate and plan, which may both be running then, the Plan and what is chosen are all they use.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes, cudaStream_t stream, Args&&... args) {
  launch_clusters(1, kernel, grid, block, shared_bytes, stream, args...);
}
}  // namespace dsmoe::cuda
