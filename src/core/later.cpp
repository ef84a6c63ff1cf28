#include "core/later.h"

#include <cstring>

#include "core/device.h"
#include "core/fault.h"

namespace dsmoe {

namespace {

constexpr std::size_t kFaultBytes = sizeof(std::uint64_t);  // comes first

}  // namespace

Later::Later() = default;
Later::~Later() = default;
Later::Later(Later&&) noexcept = default;

void Later::begin(Context& ctx, const Tensor& tensor) {
  if (tensor.device() == Device::kCpu) {
    tensor_ = tensor.clone();
    return;
  }
  tensor_ = tensor;
  if (!download_ || room_ < tensor.bytes()) {
    room_ = tensor.bytes();
    download_ = std::make_unique<device::Download>(kFaultBytes + room_);
  }
  download_->copy(0, ctx.fault_word(), kFaultBytes, ctx.stream());
  download_->copy(kFaultBytes, tensor.raw(), tensor.bytes(), ctx.stream());
  download_->end(ctx.stream());
}

Tensor Later::get(Context& ctx) {
  if (tensor_.device() == Device::kCpu) return tensor_;
  const std::byte* const bytes = download_->wait();
  std::uint64_t fault = kNoFault;
  std::memcpy(&fault, bytes, kFaultBytes);
  if (fault != kNoFault) ctx.synchronize();  // throws it
  return Tensor::wrap(static_cast<const void*>(bytes + kFaultBytes), tensor_.dtype(), tensor_.shape());
}

}  // namespace dsmoe
