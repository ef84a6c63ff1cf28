#include "ops/embedding.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::random_tensor;

std::vector<std::int32_t> random_ids(Index count, Index vocabulary, std::uint64_t seed) {
  test::Draw draw(seed);
  std::vector<std::int32_t> ids;
  for (Index i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(draw(vocabulary)));
  return ids;
}

Tensor tensor_of(std::span<const std::int32_t> ids) { return Tensor::view_of(ids); }

TEST(OpsEmbedding, RowsOfTheTable) {
  test::Draw draw(1);
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(2, backend);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const Index t = draw.between(0, 80), v = draw.between(1, 50), d = draw.between(1, 200);
      const Tensor table = random_tensor(type, {v, d}, 2);
      const auto ids = random_ids(t, v, 3);
      Tensor x(DType::kF32, {t, d});
      ops::embedding(ctx, table, tensor_of(ids), x);
      for (Index i = 0; i < t; ++i) {
        const Index id = ids[static_cast<std::size_t>(i)];
        EXPECT_TRUE(test::same_bits(x.rows(i, i + 1), table.rows(id, id + 1).to(DType::kF32))) << i;
      }
    }
  }
}

TEST(OpsEmbedding, BackwardAgainstRefAndForAnyNumberOfThreads) {
  Context ref(1, Backend::kRef);
  const Index t = 300, v = 20, d = 301;
  const Tensor dx = random_tensor(DType::kF32, {t, d}, 1), before = random_tensor(DType::kF32, {v, d}, 2);
  auto ids = random_ids(t, v - 1, 3);  // the last row has no tokens
  Tensor want = before.clone(), first;
  ops::embedding_backward(ref, tensor_of(ids), dx, want);
  for (const int threads : {1, 2, 3}) {
    Context cpu(threads);
    Tensor got = before.clone();
    ops::embedding_backward(cpu, tensor_of(ids), dx, got);
    EXPECT_TRUE(test::close(got, want, test::limit(DType::kF32, t)));
    EXPECT_TRUE(test::same_bits(got.rows(v - 1, v), before.rows(v - 1, v)));
    if (threads == 1) first = got;
    EXPECT_TRUE(test::same_bits(got, first));
  }
}

TEST(OpsEmbedding, NamesPositionIdAndVocabulary) {
  Context ctx(1);
  Tensor table = random_tensor(DType::kF32, {7, 3}, 1), x(DType::kF32, {3, 3});
  for (const std::int32_t bad : {-1, 7}) {
    const std::vector<std::int32_t> ids{0, 6, bad};
    const std::string name = fmt::format("id {}", bad);
    EXPECT_TRUE(testing::throws_error([&] { ops::embedding(ctx, table, tensor_of(ids), x); },
                                      {"token 2", name.c_str(), "vocabulary has 7 tokens"}));
    EXPECT_TRUE(
        testing::throws_error([&] { ops::embedding_backward(ctx, tensor_of(ids), x, table); }, {"token 2", name.c_str()}));
  }
  EXPECT_TRUE(
      testing::throws_error([&] { ops::embedding(ctx, table, tensor_of(random_ids(2, 7, 1)), x); }, {"2 ids", "[3, 3]"}));
  Tensor half(DType::kBF16, {7, 3});
  EXPECT_TRUE(
      testing::throws_error([&] { ops::embedding_backward(ctx, tensor_of(random_ids(3, 7, 1)), x, half); }, {"bf16"}));
}

}  // namespace
}  // namespace dsmoe
