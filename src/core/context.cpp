#include "dsmoe/context.h"

#include <cstdlib>
#include <new>

#include "core/device.h"
#include "core/threads.h"

namespace dsmoe {

struct Context::Scratch {
  void* memory = nullptr;
  std::size_t size = 0;
  ~Scratch() { std::free(memory); }
};

Context::Context(int threads, Backend backend)
    : backend_(backend), pool_(new ThreadPool(threads)), scratch_(new Scratch[static_cast<std::size_t>(pool_->size())]) {
  if (backend == Backend::kCuda) stream_ = device::default_stream();
}

Context::~Context() = default;

Tensor Context::empty(DType dtype, const Shape& shape) const { return Tensor(dtype, shape, device()); }

Tensor Context::zeros(DType dtype, const Shape& shape) const { return Tensor::zeros(dtype, shape, device()); }

void Context::synchronize() {
  if (backend_ == Backend::kCuda) device::wait(stream_);
}

void* Context::workspace(std::size_t bytes) {
  if (workspace_size_ < bytes) {
    workspace_.reset();
    workspace_ = device::allocate(bytes);
    workspace_size_ = bytes;
  }
  return workspace_.get();
}

int Context::threads() const { return pool_->size(); }

void* Context::scratch(int worker, std::size_t bytes) {
  Scratch& s = scratch_[static_cast<std::size_t>(worker)];
  if (s.size < bytes) {
    constexpr std::size_t kPage = 4096;
    const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
    std::free(s.memory);
    s.memory = std::aligned_alloc(kPage, size);
    s.size = s.memory ? size : 0;
    if (s.memory == nullptr) throw std::bad_alloc();
  }
  return s.memory;
}

}  // namespace dsmoe
