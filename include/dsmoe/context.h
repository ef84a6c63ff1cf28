// Where work runs: the threads or the GPU's stream, and which implementation of the ops. One Context serves one caller
// at a time.
#pragma once

#include <cstddef>
#include <memory>

#include "dsmoe/tensor.h"

struct CUstream_st;  // what CUDA's cudaStream_t points to

namespace dsmoe {

class ThreadPool;

enum class Backend {
  kCpu,   // SIMD kernels, threads
  kRef,   // plain loops, sums in double: the oracle that the others are tested against
  kCuda,  // the current CUDA device, for MoeLayer; needs a build with -DDSMOE_CUDA=ON
};

class Context {
 public:
  // threads <= 0: one per core that this process may use. Results do not depend on the number.
  explicit Context(int threads = 0, Backend backend = Backend::kCpu);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const;
  Backend backend() const { return backend_; }
  Device device() const { return backend_ == Backend::kCuda ? Device::kCuda : Device::kCpu; }

  // A tensor where the work runs, uninitialised or zero.
  Tensor empty(DType dtype, const Shape& shape) const;
  Tensor zeros(DType dtype, const Shape& shape) const;

  // With Backend::kCuda, calls launch work on this stream and do not wait for it. Memory that a tensor gives up is used
  // again at once, so all tensors of a program belong to one stream: the library's own unless you set another.
  CUstream_st* stream() const { return stream_; }
  void set_stream(CUstream_st* stream) { stream_ = stream; }
  void synchronize();  // waits for the stream; CPU backends have nothing to wait for

  // For the library's own use.
  ThreadPool& pool() { return *pool_; }
  // At least `bytes` of memory for one worker's current task, aligned to 64 bytes; kept and reused.
  void* scratch(int worker, std::size_t bytes);
  // At least `bytes` of GPU memory for the call that is being launched; kept and reused. A captured graph goes on using
  // it, so capture the largest call first.
  void* workspace(std::size_t bytes);

 private:
  struct Scratch;
  Backend backend_;
  CUstream_st* stream_ = nullptr;
  std::shared_ptr<void> workspace_;
  std::size_t workspace_size_ = 0;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Scratch[]> scratch_;
};

}  // namespace dsmoe
