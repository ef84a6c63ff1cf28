// The blocks that share one row: a cluster of them, or a single one where there are no clusters. The same code serves both.
#pragma once

#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda {

template <bool kClusters>
struct Blocks {
  __device__ static int count() { return of_cluster<0>(); }
  __device__ static int rank() { return of_cluster<1>(); }
  __device__ static void sync() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kClusters) {
      __syncwarp();  // threads of a warp arrive together
      return ptx::cluster_sync();
    }
#endif
    __syncthreads();
  }
  // The same shared variable of another block.
  template <class T>
  __device__ static T& of(T& shared, int rank) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kClusters) {
      T* there;
      asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(&shared), "r"(rank));
      return *there;
    }
#endif
    return shared;
  }

 private:
  template <int kWhich>
  __device__ static int of_cluster() {
    int value = kWhich == 0;
#if __CUDA_ARCH__ >= 900
    if constexpr (kClusters && kWhich == 0) asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(value));
    if constexpr (kClusters && kWhich == 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(value));
#endif
    return value;
  }
};

}  // namespace dsmoe::cuda
