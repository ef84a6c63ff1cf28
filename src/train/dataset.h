// What a training loop reads: batches of token sequences with their targets, by number.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsmoe/tensor.h"
#include "ops/cross_entropy.h"

namespace dsmoe::train {

inline constexpr std::int32_t kNoTarget = ops::kIgnoredTarget;

struct Batch {
  Index sequences = 0, length = 0;         // B, S
  std::vector<std::int32_t> ids, targets;  // [B * S]; a target of kNoTarget has no loss
  std::vector<std::uint16_t> labels;       // [B * S] number of each target's domain; empty when the data has none
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  // The batch of `count` sequences that starts at sequence number `first` of the endless order of this data set (epoch
  // after epoch, shuffled by seed or sequential). Depends on its arguments alone, so a position is one number.
  virtual Batch batch(Index first, Index count) const = 0;
  virtual Index sequences() const = 0;                      // in one epoch; 0: unlimited
  virtual std::span<const std::string> labels() const = 0;  // names of the domains
};

}  // namespace dsmoe::train
