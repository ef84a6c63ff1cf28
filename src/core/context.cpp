#include "dsmoe/context.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "core/device.h"
#include "core/fail.h"
#include "core/fault.h"
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

Tensor Context::empty(DType dtype, const Shape& shape) const {
  if (backend_ != Backend::kCuda) return Tensor(dtype, shape);
  const std::size_t bytes = Tensor::wrap(static_cast<void*>(nullptr), dtype, shape).bytes();
  if (bytes == 0) return Tensor::wrap(static_cast<void*>(nullptr), dtype, shape, {}, Device::kCuda);
  const std::shared_ptr<void> memory = device::allocate(bytes, stream_);
  return Tensor::wrap(memory.get(), dtype, shape, memory, Device::kCuda);
}

Tensor Context::zeros(DType dtype, const Shape& shape) const {
  if (backend_ != Backend::kCuda) return Tensor::zeros(dtype, shape);
  Tensor t = empty(dtype, shape);
  fill_zero(t);
  return t;
}

void Context::fill_zero(Tensor& tensor) const {
  if (tensor.bytes() == 0) return;
  if (tensor.device() == Device::kCpu)
    std::memset(tensor.raw_mutable(), 0, tensor.bytes());
  else
    device::fill_bytes(tensor.raw_mutable(), 0, tensor.bytes(), stream_);
}

Tensor Context::place(const Tensor& tensor) const {
  if (tensor.device() == device()) return tensor;
  Tensor t = empty(tensor.dtype(), tensor.shape());
  if (t.bytes() == 0) return t;
  constexpr std::size_t kSmall = std::size_t{512} << 10;  // tokens and tables: not worth waiting for
  if (t.bytes() <= kSmall && device() == Device::kCuda && !device::capturing(stream_))
    device::upload(t.raw_mutable(), tensor.raw(), t.bytes(), stream_);
  else
    device::copy(t.raw_mutable(), device(), tensor.raw(), tensor.device(), t.bytes(), stream_);
  return t;
}

Tensor Context::fetch(const Tensor& tensor) {
  synchronize();
  if (tensor.device() == Device::kCpu) return tensor;
  Tensor t(tensor.dtype(), tensor.shape());
  if (t.bytes() != 0) device::copy(t.raw_mutable(), Device::kCpu, tensor.raw(), tensor.device(), t.bytes(), stream_);
  return t;
}

void Context::set_stream(CUstream_st* stream) {
  require(backend_ == Backend::kCuda, "a stream is for Backend::kCuda; this Context runs on the CPU");
  stream_ = stream;
}

void Context::synchronize() {
  if (backend_ != Backend::kCuda) return;
  device::wait(stream_);
  if (!fault_) return;
  std::uint64_t fault = kNoFault;
  device::copy(&fault, Device::kCpu, fault_.get(), Device::kCuda, sizeof fault, stream_);
  if (fault == kNoFault) return;
  device::fill_bytes(fault_.get(), 0xff, sizeof fault, stream_);
  throw_fault(fault);
}

unsigned long long* Context::fault_word() {
  if (!fault_) {
    require(!device::capturing(stream_), "the first call on a Context cannot be captured; run it once before");
    fault_ = device::allocate(sizeof(std::uint64_t), stream_);
    device::fill_bytes(fault_.get(), 0xff, sizeof(std::uint64_t), stream_);
  }
  return static_cast<unsigned long long*>(fault_.get());
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
