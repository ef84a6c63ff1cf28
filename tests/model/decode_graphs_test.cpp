// The sizes that captured passes come in, and the rows that fill them up. The passes themselves: tests/cuda/model.
#include "model/decode_graphs.h"

#include <gtest/gtest.h>

#include <set>

#include "support/expect_error.h"

namespace dsmoe {
namespace {

TEST(DecodeGraphs, RowsComeInFewSizes) {
  std::set<Index> sizes;
  for (Index n = 1; n <= 256; ++n) {
    const Index rows = DecodeGraphs::rows_for(n);
    ASSERT_GE(rows, n);
    ASSERT_EQ(DecodeGraphs::rows_for(rows), rows) << n;
    ASSERT_LE(rows, std::max<Index>(2 * n - 1, 1)) << n;
    sizes.insert(rows);
  }
  EXPECT_EQ(sizes, (std::set<Index>{1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256}));
  EXPECT_EQ(DecodeGraphs::rows_for(257), 320);
}

TEST(DecodeGraphs, PaddingRepeatsTheShortestSequence) {
  Context ctx(1);
  const KvLayout layer{.k_width = 4, .v_width = 4};
  const auto pool = std::make_shared<KvPool>(std::span(&layer, 1), 20, DType::kF32);
  std::vector<KvSequence> sequences;
  for (const Index length : {300, 7, 600}) {
    KvSequence& s = sequences.emplace_back(pool);
    s.reserve(ctx, length);
    s.advance(length);
  }
  ForwardBatch batch;
  std::vector<std::int32_t> ids = {5, 6, 7};
  for (std::size_t i = 0; i < 3; ++i) batch.add(ctx, sequences[i], std::span(ids).subspan(i, 1));
  const ForwardBatch padded = batch.padded(8);
  EXPECT_EQ(padded.tokens(), 8);
  EXPECT_EQ(padded.all_logits(), 8);
  for (std::size_t i = 0; i < 8; ++i) {
    const std::size_t like = i < 3 ? i : 1;
    EXPECT_EQ(padded.ids()[i], ids[like]);
    EXPECT_EQ(padded.slices()[i].first_row, static_cast<Index>(i));
    EXPECT_EQ(padded.slices()[i].first_position, batch.slices()[like].first_position);
    EXPECT_EQ(padded.slices()[i].tiles.data(), batch.slices()[like].tiles.data());
  }
  padded.advance();  // of no sequence
  EXPECT_EQ(sequences[1].length(), 7);
  EXPECT_TRUE(testing::throws_error([&] { batch.padded(2); }, {"cannot be padded"}));
  ForwardBatch two;
  two.add(ctx, sequences[1], ids, 1);
  EXPECT_TRUE(testing::throws_error([&] { two.padded(4); }, {"cannot be padded"}));
}

}  // namespace
}  // namespace dsmoe
