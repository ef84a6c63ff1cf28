// Parts of tensors by regular distances: what a parameter's name stands for.
#include "core/tensor_view.h"

#include <gtest/gtest.h>

#include "dsmoe/error.h"

namespace dsmoe {
namespace {

Tensor counting(Shape shape) {
  Tensor t(DType::kF32, shape);
  for (Index i = 0; i < t.numel(); ++i) t.data<float>()[i] = static_cast<float>(i);
  return t;
}

std::vector<float> numbers(const Tensor& t) {
  const std::span<const float> all = t.span<float>();
  return {all.begin(), all.end()};
}

TEST(TensorView, WholeTensorIsTheSameMemory) {
  const Tensor t = counting({2, 3});
  const TensorView view(t);
  EXPECT_TRUE(view.contiguous());
  EXPECT_EQ(view.dense().raw(), t.raw());
  EXPECT_EQ(view.shape, t.shape());
}

// Two experts of [3, 4] side by side in [2, 2, 3, 4]: the second of each pair, as one matrix [6, 4].
TEST(TensorView, RowsOfSeveralParts) {
  const Tensor t = counting({2, 2, 3, 4});
  const TensorView view(t, {6, 4}, 12, {2, 3, 4}, {24, 4});
  EXPECT_FALSE(view.contiguous());
  std::vector<std::pair<Index, Index>> runs;
  view.each_run([&](Index first, Index count) { runs.emplace_back(first, count); });
  EXPECT_EQ(runs, (std::vector<std::pair<Index, Index>>{{12, 12}, {36, 12}}));
  const std::vector<float> got = numbers(view.dense());
  ASSERT_EQ(got.size(), 24u);
  EXPECT_EQ(got[0], 12);
  EXPECT_EQ(got[12], 36);
  EXPECT_EQ(got[23], 47);
}

// Columns of several parts: [3, 2 * 4] from [2, 3, 4].
TEST(TensorView, ColumnsOfSeveralParts) {
  const Tensor t = counting({2, 3, 4});
  const TensorView view(t, {3, 8}, 0, {3, 2, 4}, {4, 12});
  EXPECT_EQ(numbers(view.dense()),
            (std::vector<float>{0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 16, 17, 18, 19, 8, 9, 10, 11, 20, 21, 22, 23}));
}

TEST(TensorView, AssignWritesThereAndNowhereElse) {
  const Tensor t = counting({2, 3, 4});
  const TensorView view(t, {3, 4}, 12, {1, 3, 4}, {0, 4});
  view.assign(Tensor::zeros(DType::kBF16, {3, 4}));
  const std::vector<float> got = numbers(t);
  for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(got[i], i < 12 ? static_cast<float>(i) : 0) << i;
  EXPECT_THROW(view.assign(Tensor::zeros(DType::kF32, {4, 3})), Error);
  const Tensor other = Tensor::zeros(DType::kF32, {2, 3, 4});
  EXPECT_EQ(view.on(other).dense().raw(), other.data<float>() + 12);
  EXPECT_THROW(view.on(Tensor(DType::kF32, {24})), Error);
}

TEST(TensorView, LeavesNoTensor) {
  const Tensor t = counting({2, 3});
  EXPECT_THROW(TensorView(t, {2, 2}, 3, {1, 2, 2}, {0, 3}), Error);
  EXPECT_THROW(TensorView(t, {2, 3}, 0, {1, 2, 2}, {0, 3}), Error);
}

}  // namespace
}  // namespace dsmoe
