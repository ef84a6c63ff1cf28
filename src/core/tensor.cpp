#include "dsmoe/tensor.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "core/device.h"
#include "core/fail.h"
#include "core/memory.h"

namespace dsmoe {

namespace {

// By way of f32, which holds every f16 and bf16 exactly: one rounding at most.
template <class To, class From>
void convert(std::span<const From> from, To* to) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = To(static_cast<float>(from[i]));
}
}  // namespace

StorageBlock block_of(DType dtype) {
  // K-quant blocks hold 8 (or 16) sub-blocks with small scales under one or two f16.
  switch (file_type(dtype)) {
    case DType::kF32:
    case DType::kI32: return {1, 4};
    case DType::kBF16:
    case DType::kF16: return {1, 2};
    case DType::kF64:
    case DType::kI64: return {1, 8};
    case DType::kU8: return {1, 1};
    case DType::kQ8_0: return {32, 2 + 32};             // f16 scale, 8 bits each
    case DType::kQ4_0: return {32, 2 + 16};             // f16 scale, 4 bits each
    case DType::kQ5_0: return {32, 2 + 4 + 16};         // f16 scale, fifth bits, 4 bits each
    case DType::kQ4_K: return {256, 2 + 2 + 12 + 128};  // scale and minimum, 8 x 6 bits of each, 4 bits each
    case DType::kQ5_K: return {256, 2 + 2 + 12 + 32 + 128};
    case DType::kQ6_K: return {256, 128 + 64 + 16 + 2};  // low 4 bits, high 2 bits, 16 scales, f16 scale
    default: break;
  }
  fail(ErrorCode::kInternal, "unknown dtype {}", static_cast<int>(dtype));
}

std::size_t size_of(DType dtype) {
  const StorageBlock block = block_of(dtype);
  require(block.numbers == 1, "a {} number has no size of its own", to_string(dtype));
  return block.bytes;
}

std::size_t row_bytes(DType dtype, std::int64_t n) {
  const StorageBlock block = block_of(dtype);
  require(n % block.numbers == 0, "{} is stored in blocks of {}; a row of {} is no multiple of it", to_string(dtype),
          block.numbers, n);
  return static_cast<std::size_t>(n / block.numbers) * block.bytes;
}

const char* to_string(DType dtype) {
  switch (file_type(dtype)) {
    case DType::kF32: return "f32";
    case DType::kF64: return "f64";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "f16";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
    case DType::kU8: return "u8";
    case DType::kQ8_0: return "q8_0";
    case DType::kQ4_0: return "q4_0";
    case DType::kQ5_0: return "q5_0";
    case DType::kQ4_K: return "q4_k";
    case DType::kQ5_K: return "q5_k";
    case DType::kQ6_K: return "q6_k";
    default: return "unknown";
  }
}

Shape::Shape(std::initializer_list<Index> dims) : Shape(std::span<const Index>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const Index> dims) {
  require(dims.size() <= kMaxRank, "a tensor has at most {} dimensions, got {}", static_cast<int>(kMaxRank), dims.size());
  Index total = 1;
  for (const Index d : dims) {
    require(d >= 0, "a dimension cannot be negative, got {}", d);
    require(d == 0 || total <= std::numeric_limits<Index>::max() / 16 / d, "a shape of this size does not fit in memory");
    total *= d == 0 ? 1 : d;
    dims_[static_cast<std::size_t>(rank_++)] = d;
  }
}

Index Shape::numel() const {
  Index n = 1;
  for (int i = 0; i < rank_; ++i) n *= (*this)[i];
  return n;
}

std::string Shape::str() const {
  std::string s = "[";
  for (int i = 0; i < rank_; ++i) s += (i ? ", " : "") + std::to_string((*this)[i]);
  return s + "]";
}

Tensor::Tensor(DType dtype, Shape shape, Device device) : dtype_(dtype), device_(device), shape_(shape) {
  if (is_quantized(dtype)) row_bytes(dtype, rank() > 0 ? dim(rank() - 1) : 1);
  if (bytes() == 0) return;
  const std::shared_ptr<void> memory =
      device == Device::kCpu ? allocate_memory(bytes()) : device::allocate(bytes(), device::default_stream());
  storage_ = memory;
  data_ = memory.get();
}

Tensor Tensor::zeros(DType dtype, Shape shape, Device device) {
  Tensor t(dtype, shape, device);
  if (t.bytes() == 0) return t;
  if (device == Device::kCpu)
    std::memset(t.data_, 0, t.bytes());
  else
    device::fill_bytes(t.data_, 0, t.bytes(), device::default_stream());
  return t;
}

Tensor Tensor::wrap(void* data, DType dtype, Shape shape, std::shared_ptr<const void> keep_alive, Device device) {
  Tensor t;
  t.device_ = device;
  t.storage_ = std::move(keep_alive);
  t.data_ = data;
  t.dtype_ = dtype;
  t.shape_ = shape;
  return t;
}

Tensor Tensor::wrap(const void* data, DType dtype, Shape shape, std::shared_ptr<const void> keep_alive, Device device) {
  Tensor t = wrap(const_cast<void*>(data), dtype, shape, std::move(keep_alive), device);
  t.read_only_ = true;
  return t;
}

void Tensor::throw_read_only() { fail(ErrorCode::kInternal, "internal error: a read-only tensor was opened for writing"); }

void Tensor::throw_dtype(DType expected) const {
  require(device_ == Device::kCpu, "a {} {} tensor in GPU memory was opened on the CPU; copy it with to(Device::kCpu)",
          to_string(dtype_), shape_.str());
  fail(ErrorCode::kInvalidArgument, "expected a {} tensor, got {} {}", to_string(expected), to_string(dtype_),
       shape_.str());
}

Tensor Tensor::rows(Index begin, Index end) const {
  require(rank() >= 1 && 0 <= begin && begin <= end && end <= dim(0), "rows [{}, {}) are not in a tensor of shape {}",
          begin, end, shape_.str());
  std::array<Index, Shape::kMaxRank> dims{};
  Index row = 1;
  dims[0] = end - begin;
  for (int i = 1; i < rank(); ++i) row *= dims[static_cast<std::size_t>(i)] = dim(i);
  Tensor t = *this;
  t.shape_ = Shape(std::span<const Index>(dims.data(), static_cast<std::size_t>(rank())));
  if (data_ != nullptr) t.data_ = static_cast<char*>(data_) + row_bytes(dtype_, begin * row);
  return t;
}

Tensor Tensor::reshape(Shape shape) const {
  require(shape.numel() == numel(), "cannot view {} as {}", shape_.str(), shape.str());
  if (is_quantized(dtype_)) row_bytes(dtype_, shape.rank() > 0 ? shape[shape.rank() - 1] : 1);
  Tensor t = *this;
  t.shape_ = shape;
  return t;
}

Tensor Tensor::clone() const {
  Tensor t(dtype_, shape_, device_);
  if (bytes() == 0) return t;
  if (device_ == Device::kCpu)
    std::memcpy(t.data_, data_, bytes());
  else
    device::copy(t.data_, device_, data_, device_, bytes(), device::default_stream());
  return t;
}

Tensor Tensor::to(Device device) const {
  if (device == device_) return *this;
  Tensor t(dtype_, shape_, device);
  if (bytes() != 0) device::copy(t.data_, device, data_, device_, bytes(), device::default_stream());
  return t;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  Tensor t(dtype, shape_);
  if (dtype_ == DType::kBF16 && dtype == DType::kF32) {
    convert(span<BFloat16>(), t.data<float>());
  } else if (dtype_ == DType::kF32 && dtype == DType::kBF16) {
    convert(span<float>(), t.data<BFloat16>());
  } else if (dtype_ == DType::kF16 && dtype == DType::kF32) {
    convert(span<Float16>(), t.data<float>());
  } else if (dtype_ == DType::kF16 && dtype == DType::kBF16) {
    convert(span<Float16>(), t.data<BFloat16>());
  } else if (dtype_ == DType::kF32 && dtype == DType::kF16) {
    convert(span<float>(), t.data<Float16>());
  } else if (dtype_ == DType::kBF16 && dtype == DType::kF16) {
    convert(span<BFloat16>(), t.data<Float16>());
  } else {
    fail(ErrorCode::kUnsupported, "no conversion from {} to {}", to_string(dtype_), to_string(dtype));
  }
  return t;
}

}  // namespace dsmoe
