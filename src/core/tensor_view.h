// The part of a tensor that a parameter's name in a file refers to, as a strided view. An expert's matrix is a slice of a
// stack; the shared experts, which files store as one wide MLP, are several slices.
#pragma once

#include <array>
#include <functional>

#include "dsmoe/tensor.h"

namespace dsmoe {

struct TensorView {
  Tensor tensor;
  Shape shape;                     // as the file has it
  Index offset = 0;                // of the first number
  std::array<Index, 3> dims{};     // the same numbers, a block of `dims[2]` neighbours at a time
  std::array<Index, 2> strides{};  // from one index of dims[0] and of dims[1] to the next

  TensorView() = default;
  explicit TensorView(Tensor whole);
  TensorView(Tensor tensor, Shape shape, Index offset, std::array<Index, 3> dims, std::array<Index, 2> strides);

  Index numel() const { return shape.numel(); }
  bool contiguous() const;
  // A tensor of `shape`: the same memory when it is contiguous there, else a copy.
  Tensor dense() const;
  Tensor fetched() const;                    // the same in this machine's memory
  void assign(const Tensor& from) const;     // of `shape`; f32, bf16 and f16 are converted
  TensorView on(const Tensor& other) const;  // the same view of another tensor of the same shape
  // Calls fn(first, count) for each contiguous run of elements, as long as possible.
  void each_run(const std::function<void(Index first, Index count)>& fn) const;

 private:
  // Between the whole tensor in GPU memory and its numbers one after another.
  void copy_blocks(char* whole, char* part, Device part_device, bool gather) const;
};

}  // namespace dsmoe
