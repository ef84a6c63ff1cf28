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
  kCuda,  // the current CUDA device; needs a build with -DDSMOE_CUDA=ON
};

// The backend that computes where a model's weights are.
constexpr Backend backend_for(Device device) { return device == Device::kCuda ? Backend::kCuda : Backend::kCpu; }

class Context {
 public:
  // threads <= 0: one per physical core that this process may use; of a hybrid processor, the fast ones; no more than a
  // control group's quota has time for. Results do not depend on the number.
  explicit Context(int threads = 0, Backend backend = Backend::kCpu);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const;
  Backend backend() const { return backend_; }
  Device device() const { return backend_ == Backend::kCuda ? Device::kCuda : Device::kCpu; }

  // A tensor where the work runs, uninitialised or zero. On a GPU its memory is stream-ordered: it may be reused by later
  // work on this Context's stream as soon as the last handle is gone.
  Tensor empty(DType dtype, const Shape& shape) const;
  Tensor zeros(DType dtype, const Shape& shape) const;
  void fill_zero(Tensor& tensor) const;      // stream-ordered
  Tensor place(const Tensor& tensor) const;  // a copy where the work runs; the same handle when it is there
  Tensor fetch(const Tensor& tensor);        // a copy in this machine's memory; waits, and throws like synchronize()

  // With Backend::kCuda, calls launch work on this stream, the library's own unless you set another, and do not wait for
  // it. Tensors of one stream need the usual events before another stream uses them.
  CUstream_st* stream() const { return stream_; }
  void set_stream(CUstream_st* stream);
  // Waits for the stream, and throws the Error for a fault that a kernel found in its data, such as a NaN in a gate, with
  // layer and token. On the CPU there is nothing to wait for: such errors are thrown at once.
  void synchronize();

  // For the library's own use.
  ThreadPool& pool() { return *pool_; }
  // At least `bytes` of memory for one worker's current task, aligned to 64 bytes; kept and reused.
  void* scratch(int worker, std::size_t bytes);
  // Where kernels report faults in their data (core/fault.h).
  unsigned long long* fault_word();

 private:
  struct Scratch;
  Backend backend_;
  CUstream_st* stream_ = nullptr;
  std::shared_ptr<void> fault_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Scratch[]> scratch_;
};

}  // namespace dsmoe
