#include "core/later.h"

#include <bit>
#include <cstring>

#include "core/device.h"
#include "core/fault.h"

namespace dsmoe {

namespace {

constexpr std::size_t kFaultBytes = sizeof(std::uint64_t);  // comes first

}  // namespace

std::vector<Tensor> fetch_together(Context& ctx, std::span<const Tensor> tensors) {
  if (ctx.device() == Device::kCpu) return {tensors.begin(), tensors.end()};
  constexpr std::size_t kAlign = 8;
  std::vector<std::size_t> at{0};
  for (const Tensor& t : tensors) at.push_back(at.back() + (t.bytes() + kAlign - 1) / kAlign * kAlign);
  Tensor block = ctx.empty(DType::kU8, {static_cast<Index>(at.back())});
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].bytes() > 0)
      device::copy(static_cast<char*>(block.raw_mutable()) + at[i], Device::kCuda, tensors[i].raw(), tensors[i].device(),
                   tensors[i].bytes(), ctx.stream());
  const auto here = std::make_shared<Tensor>(ctx.fetch(block));
  std::vector<Tensor> fetched;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    fetched.push_back(
        Tensor::wrap(static_cast<const char*>(here->raw()) + at[i], tensors[i].dtype(), tensors[i].shape(), here));
  return fetched;
}

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
    // Page-locked memory comes and goes only when all of the GPU's work is done: not for every row more.
    room_ = std::bit_ceil(tensor.bytes());
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
