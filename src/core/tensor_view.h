// What a parameter's name in a file stands for: numbers of one tensor, row by row, with regular distances. An expert's
// matrix is a part of a stack; the shared experts, one wide MLP in files, are several parts.
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
  void assign(const Tensor& from) const;     // of `shape`; f32, bf16 and f16 are converted
  TensorView on(const Tensor& other) const;  // the same place of another tensor of the same shape
  // fn(first, count) for the runs of neighbours in the tensor that the view consists of, as long as they can be.
  void each_run(const std::function<void(Index first, Index count)>& fn) const;
};

}  // namespace dsmoe
