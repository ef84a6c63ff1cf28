#include "core/later.h"

#include <bit>
#include <cstring>

#include "core/device.h"
#include "core/fault.h"

namespace dsmoe {

namespace {

constexpr std::size_t kFaultBytes = sizeof(std::uint64_t);  // comes first

constexpr std::size_t kAlign = 8;
std::size_t room_of(const Tensor& t) { return (t.bytes() + kAlign - 1) / kAlign * kAlign; }

// On a GPU: copies of tensors one after another.
Tensor joined(Context& ctx, std::span<const Tensor> tensors) {
  std::size_t bytes = 0, at = 0;
  for (const Tensor& t : tensors) bytes += room_of(t);
  Tensor block = ctx.empty(DType::kU8, {static_cast<Index>(bytes)});
  for (const Tensor& t : tensors) {
    if (t.bytes() > 0)
      device::copy(static_cast<char*>(block.raw_mutable()) + at, Device::kCuda, t.raw(), t.device(), t.bytes(),
                   ctx.stream());
    at += room_of(t);
  }
  return block;
}

// Tensors like the given ones, in a fetched block.
std::vector<Tensor> parted(const Tensor& block, std::span<const Tensor> like) {
  const auto here = std::make_shared<Tensor>(block);
  std::vector<Tensor> parts;
  std::size_t at = 0;
  for (const Tensor& t : like) {
    parts.push_back(Tensor::wrap(static_cast<const char*>(here->raw()) + at, t.dtype(), t.shape(), here));
    at += room_of(t);
  }
  return parts;
}

}  // namespace

std::vector<Tensor> fetch_together(Context& ctx, std::span<const Tensor> tensors) {
  if (ctx.device() == Device::kCpu) return {tensors.begin(), tensors.end()};
  return parted(ctx.fetch(joined(ctx, tensors)), tensors);
}

void LaterTogether::begin(Context& ctx, std::span<const Tensor> tensors) {
  tensors_.assign(tensors.begin(), tensors.end());
  if (ctx.device() != Device::kCpu) block_.begin(ctx, joined(ctx, tensors));
}

std::vector<Tensor> LaterTogether::get(Context& ctx) {
  return ctx.device() == Device::kCpu ? tensors_ : parted(block_.get(ctx), tensors_);
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
