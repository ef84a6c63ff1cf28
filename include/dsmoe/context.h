// Where work runs: the threads, and which implementation of the ops. One Context serves one caller at a time.
#pragma once

#include <cstddef>
#include <memory>

namespace dsmoe {

class ThreadPool;

enum class Backend {
  kCpu,  // SIMD kernels, threads
  kRef,  // plain loops, sums in double: the oracle that the others are tested against
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

  // For the library's own use.
  ThreadPool& pool() { return *pool_; }
  // At least `bytes` of memory for one worker's current task, aligned to 64 bytes; kept and reused.
  void* scratch(int worker, std::size_t bytes);

 private:
  struct Scratch;
  Backend backend_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Scratch[]> scratch_;
};

}  // namespace dsmoe
