#include "train/ids_dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "support/expect_error.h"
#include "support/temp_folder.h"
#include "train/permutation.h"

namespace dsmoe::train {
namespace {

class TrainIdsDataset : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) const {
    std::ofstream(folder_ / "x.ids") << text;
    return folder_ / "x.ids";
  }

 private:
  testing::TempFolder folder_;
};

TEST_F(TrainIdsDataset, SequentialOrderWrapsAround) {
  const IdsDataset data(write("1 2 3\n4 5 6\n7 8 9\n"), 10, IdsDataset::Order::kSequential, 0);
  EXPECT_EQ(data.sequences(), 3);
  const Batch batch = data.batch(2, 2);
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.length, 2);
  EXPECT_EQ(batch.ids, (std::vector<std::int32_t>{7, 8, 1, 2}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{8, 9, 2, 3}));
}

TEST_F(TrainIdsDataset, EveryShuffledEpochHasEveryLineOnce) {
  std::string text;
  for (int i = 0; i < 37; ++i) text += std::to_string(i) + " 1\n";
  const auto path = write(text);
  const IdsDataset data(path, 50, IdsDataset::Order::kShuffled, 3), other(path, 50, IdsDataset::Order::kShuffled, 4);
  const std::vector<std::int32_t> first = data.batch(0, 37).ids, second = data.batch(37, 37).ids;
  std::vector<std::int32_t> all(37), sorted = first;
  std::iota(all.begin(), all.end(), 0);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, all);
  EXPECT_TRUE(std::is_permutation(second.begin(), second.end(), all.begin(), all.end()));
  EXPECT_NE(first, all);
  EXPECT_NE(first, second);
  EXPECT_NE(first, other.batch(0, 37).ids);
  EXPECT_EQ(data.batch(5, 3).ids, (std::vector<std::int32_t>(first.begin() + 5, first.begin() + 8)));
}

TEST_F(TrainIdsDataset, RefusesLinesThatCannotBeTrainedOn) {
  EXPECT_TRUE(testing::throws_error([&] { IdsDataset(write("1 2 3\n1 2\n"), 10, IdsDataset::Order::kSequential, 0); },
                                    {":2", "2 token ids", "3"}));
  EXPECT_TRUE(testing::throws_error([&] { IdsDataset(write("1\n"), 10, IdsDataset::Order::kSequential, 0); },
                                    {":1", "one token id"}));
  EXPECT_TRUE(
      testing::throws_error([&] { IdsDataset(write(""), 10, IdsDataset::Order::kSequential, 0); }, {"no token ids"}));
}

TEST(TrainPermutation, IsOneForEverySize) {
  for (const std::uint64_t n : {1ull, 2ull, 3ull, 4ull, 5ull, 16ull, 17ull, 100ull, 4097ull}) {
    std::vector<bool> seen(n);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t p = permuted(i, n, 1, 0);
      ASSERT_LT(p, n);
      EXPECT_FALSE(seen[p]) << n;
      seen[p] = true;
    }
  }
}

}  // namespace
}  // namespace dsmoe::train
