// A dense row-major array with shared storage. Copying a Tensor copies the handle, not the numbers.
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

class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape);  // uninitialised, aligned to 64 bytes
  static Tensor zeros(DType dtype, Shape shape);
  // Memory that someone else owns; keep_alive (may be empty) is held as long as any handle lives.
  static Tensor wrap(void* data, DType dtype, Shape shape, std::shared_ptr<const void> keep_alive = {});
  // The same for memory that must not be written (a mapped file): mutable access throws.
  static Tensor wrap(const void* data, DType dtype, Shape shape, std::shared_ptr<const void> keep_alive = {});

  explicit operator bool() const { return data_ != nullptr || shape_.numel() == 0; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  Index dim(int i) const { return shape_[i]; }
  Index numel() const { return shape_.numel(); }
  std::size_t bytes() const { return row_bytes(dtype_, numel()); }

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

 private:
  void expect_dtype(DType dtype) const {
    if (dtype != dtype_) [[unlikely]]
      throw_dtype(dtype);
  }
  [[noreturn]] void throw_dtype(DType expected) const;
  [[noreturn]] static void throw_read_only();

  std::shared_ptr<const void> storage_;
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  bool read_only_ = false;
  Shape shape_{0};
};

}  // namespace dsmoe
