// A dense row-major array with shared storage, in this machine's memory or in a GPU's. Copying a Tensor copies the
// handle, not the numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "dsmoe/dtype.h"

namespace dsmoe {

using Index = std::int64_t;

// Up to four dimensions, which is all that the models here need.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<Index> dims);
  explicit Shape(std::span<const Index> dims);

  int rank() const { return rank_; }
  Index operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  Index numel() const;      // 1 for rank 0
  std::string str() const;  // "[3, 4]"
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<Index, kMaxRank> dims_{};
  int rank_ = 0;
};

enum class Device : std::uint8_t {
  kCpu,
  kCuda,  // the current CUDA device; needs a build with -DDSMOE_CUDA=ON
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape, Device device = Device::kCpu);  // uninitialised, aligned to 64 bytes
  static Tensor zeros(DType dtype, Shape shape, Device device = Device::kCpu);
  // Memory that someone else owns; keep_alive (may be empty) is held as long as any handle lives.
  static Tensor wrap(void* data, DType dtype, Shape shape, std::shared_ptr<const void> keep_alive = {},
                     Device device = Device::kCpu);
  // The same for memory that must not be written (a mapped file): mutable access throws.
  static Tensor wrap(const void* data, DType dtype, Shape shape, std::shared_ptr<const void> keep_alive = {},
                     Device device = Device::kCpu);

  // A vector's numbers where they are, for reading: [n].
  template <class T>
  static Tensor view_of(std::span<const T> values) {
    return wrap(static_cast<const void*>(values.data()), DTypeOf<T>::value, {static_cast<Index>(values.size())});
  }

  explicit operator bool() const { return data_ != nullptr || shape_.numel() == 0; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  Index dim(int i) const { return shape_[i]; }
  Index numel() const { return shape_.numel(); }
  std::size_t bytes() const { return row_bytes(dtype_, numel()); }

  // raw() is an address on the tensor's device; data() and span() are for the CPU and throw for a GPU's tensor.
  const void* raw() const { return data_; }
  void* raw_mutable() {
    if (read_only_) [[unlikely]]
      throw_read_only();
    return data_;
  }
  template <class T>
  const T* data() const {
    expect_dtype(DTypeOf<T>::value);
    return static_cast<const T*>(data_);
  }
  template <class T>
  T* data() {
    expect_dtype(DTypeOf<T>::value);
    return static_cast<T*>(raw_mutable());
  }
  template <class T>
  std::span<const T> span() const {
    return {data<T>(), static_cast<std::size_t>(numel())};
  }
  template <class T>
  std::span<T> span() {
    return {data<T>(), static_cast<std::size_t>(numel())};
  }

  Tensor rows(Index begin, Index end) const;  // a view of rows [begin, end) of the first dimension
  Tensor reshape(Shape shape) const;          // a view with as many elements
  Tensor clone() const;                       // a copy of the numbers
  Tensor to(DType dtype) const;               // between f32, bf16 and f16; the same handle when nothing changes
  // A copy on the other device; the same handle when nothing changes. In the order of the library's own stream of that GPU:
  // for work on a stream of your own, use Context::place() and Context::fetch().
  Tensor to(Device device) const;

 private:
  void expect_dtype(DType dtype) const {
    if (dtype != dtype_ || device_ != Device::kCpu) [[unlikely]]
      throw_dtype(dtype);
  }
  [[noreturn]] void throw_dtype(DType expected) const;
  [[noreturn]] static void throw_read_only();

  std::shared_ptr<const void> storage_;
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Device device_ = Device::kCpu;
  bool read_only_ = false;
  Shape shape_{0};
};

}  // namespace dsmoe
