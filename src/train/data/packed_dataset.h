// Sequences cut from the stream of tokens in a cache.
#pragma once

#include <memory>

#include "train/data/open_dataset.h"
#include "train/data/token_cache.h"

namespace dsmoe::train {

// Sequence n of the stream is its tokens n (S + 1) to n (S + 1) + S: S inputs and, one later, S targets. Every token is in
// one sequence; the rest at the end that fills none is left out. Documents run across the cuts.
//
// Held out are the sequences k - 1, 2k - 1, ... for k = 1 / holdout, rounded: spread over all of the data, and never
// among the others.
class PackedDataset : public Dataset {
 public:
  enum class Part : std::uint8_t { kTraining, kHeldOut };

  PackedDataset(std::shared_ptr<const io::MappedFile> file, const TokenCacheView& view, const DataOptions& options,
                Index vocab_size, Part part);

  Batch batch(Index first, Index count) const override;
  Index sequences() const override { return count_; }
  std::span<const std::string> labels() const override { return labels_; }

  // The number in the whole stream of sequence i of this part; for tests.
  Index in_stream(Index i) const;

 private:
  Batch read_batch(Index first, Index count) const;

  std::shared_ptr<const io::MappedFile> file_;  // keeps the tokens mapped
  TokenCacheView view_;
  std::vector<std::string> labels_;  // empty when there is only one
  Index length_, vocab_size_, every_, count_;
  Part part_;
  bool shuffled_;
  std::uint64_t seed_;
};

}  // namespace dsmoe::train
