#include "train/ids_dataset.h"

#include "core/fail.h"
#include "io/text_data.h"
#include "train/hash.h"
#include "train/permutation.h"

namespace dsmoe::train {

IdsDataset::IdsDataset(const std::filesystem::path& path, Index vocab_size, Order order, std::uint64_t seed)
    : order_(order), seed_(seed) {
  io::IdsReader reader(path, vocab_size);
  std::vector<std::int32_t> line;
  while (reader.next(line)) {
    const auto inputs = static_cast<Index>(line.size()) - 1;
    if (lines_ == 0) length_ = inputs;
    if (inputs < 1)
      fail(ErrorCode::kFormat, "{}:{}: one token id; a line needs two at least, an input and its target", path.string(),
           lines_ + 1);
    if (inputs != length_)
      fail(ErrorCode::kFormat, "{}:{}: {} token ids, but the first line has {}; training needs lines of one length",
           path.string(), lines_ + 1, inputs + 1, length_ + 1);
    ids_.insert(ids_.end(), line.begin(), line.end());
    ++lines_;
  }
  if (lines_ == 0) fail(ErrorCode::kFormat, "{}: no token ids to train on", path.string());
}

std::string IdsDataset::fingerprint() const {
  Hash hash;
  hash.add(static_cast<std::uint64_t>(length_));
  hash.add(std::as_bytes(std::span(ids_)));
  return hash.hex();
}

Batch IdsDataset::batch(Index first, Index count) const {
  require(first >= 0 && count > 0, "a batch of {} sequences from number {}", count, first);
  Batch batch{.sequences = count, .length = length_};
  for (Index i = first; i < first + count; ++i) {
    const Index epoch = i / lines_, place = i % lines_;
    const auto line =
        order_ == Order::kSequential
            ? place
            : static_cast<Index>(permuted(static_cast<std::uint64_t>(place), static_cast<std::uint64_t>(lines_), seed_,
                                          static_cast<std::uint64_t>(epoch)));
    const auto begin = ids_.begin() + line * (length_ + 1);
    batch.ids.insert(batch.ids.end(), begin, begin + length_);
    batch.targets.insert(batch.targets.end(), begin + 1, begin + length_ + 1);
  }
  return batch;
}

}  // namespace dsmoe::train
