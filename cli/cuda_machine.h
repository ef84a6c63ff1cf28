// What benchmarks need of a CUDA device besides a Context: streams, times, and the two rates that bound every
// kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

#include "dsmoe/tensor.h"
#include "ops/cuda/device.h"

namespace dsmoe::cli {

cuda::Path path_of(const std::string& name);  // auto, hopper, mma or plain

class CudaStream {
 public:
  CudaStream();
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Median times of one call, each over `repeats` timed groups of `group` calls. A chip under load lowers its clock to stay
// within its power, so there are two: soon after a pause, whatever ran before, and when it has worked for a while.
struct Seconds {
  double soon;       // after a pause of 200 ms and 20 ms of calls that are not timed
  double sustained;  // after another second of calls
};
Seconds median_seconds(int repeats, int group, cudaStream_t stream, const std::function<void()>& launch);

struct Flops {
  double soon, sustained;
};
Flops matrix_flops(DType dtype);  // of a large product by cuBLASLt, random numbers, no TF32
double copy_bandwidth();          // bytes/s read and written by a copy within the device

}  // namespace dsmoe::cli
