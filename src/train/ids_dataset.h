// An .ids file as training data: a line of n + 1 ids is a sequence of n inputs and their n targets.
#pragma once

#include <filesystem>

#include "dsmoe/train_options.h"
#include "train/dataset.h"

namespace dsmoe::train {

class IdsDataset : public Dataset {
 public:
  using Order = train::Order;

  // All lines must have one length, at least two ids. Sequential: sequence i is line i modulo the number of lines.
  // Shuffled: every epoch has its own permutation of the lines, by seed and epoch.
  IdsDataset(const std::filesystem::path& path, Index vocab_size, Order order, std::uint64_t seed);

  Batch batch(Index first, Index count) const override;
  Index sequences() const override { return lines_; }
  std::span<const std::string> labels() const override { return {}; }
  std::string fingerprint() const;
  Index length() const { return length_; }  // S, the inputs of one sequence

 private:
  Order order_;
  std::uint64_t seed_;
  Index lines_ = 0, length_ = 0;
  std::vector<std::int32_t> ids_;  // [lines, length + 1]
};

}  // namespace dsmoe::train
