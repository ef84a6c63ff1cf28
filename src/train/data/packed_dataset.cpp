#include "train/data/packed_dataset.h"

#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "train/permutation.h"

namespace dsmoe::train {

namespace {

// About too little data.
std::string what_to_do(const TokenCacheInfo& info) {
  if (info.bad_count == 0 || info.bad.empty()) return "give more, or shorten the sequences";
  return fmt::format("{} lines or files were left out, the first of them {}", info.bad_count, info.bad.front());
}

}  // namespace

PackedDataset::PackedDataset(std::shared_ptr<const io::MappedFile> file, const TokenCacheView& view,
                             const DataOptions& options, Index vocab_size, Part part)
    : file_(std::move(file)),
      view_(view),
      length_(options.sequence_length),
      vocab_size_(vocab_size),
      every_(0),
      part_(part),
      shuffled_(part == Part::kTraining && options.order == DataOptions::Order::kShuffled),
      seed_(options.seed) {
  if (view_.info.labels.size() > 1) labels_ = view_.info.labels;
  const auto all = static_cast<Index>(view_.count() / static_cast<std::uint64_t>(length_ + 1));
  require(all > 0, "the data has {} tokens, fewer than one sequence of {} and its last target; {}", view_.count(), length_,
          what_to_do(view_.info));
  if (options.holdout > 0) {
    require(all > 1, "the data has {} tokens, one sequence; with a held-out part it needs two, or none held out",
            view_.count());
    // At least one is held out. 1 / 0.001 is 1000.0 exactly enough for rounding.
    every_ = std::clamp<Index>(static_cast<Index>(std::llround(1 / options.holdout)), 2, all);
  }
  const Index held = every_ == 0 ? 0 : all / every_;
  count_ = part == Part::kHeldOut ? held : all - held;
}

Index PackedDataset::in_stream(Index i) const {
  const Index epoch = i / count_;
  Index place = i % count_;
  if (shuffled_)
    place = static_cast<Index>(permuted(static_cast<std::uint64_t>(place), static_cast<std::uint64_t>(count_), seed_,
                                        static_cast<std::uint64_t>(epoch)));
  if (part_ == Part::kHeldOut) return (place + 1) * every_ - 1;
  return every_ == 0 ? place : place + place / (every_ - 1);
}

Batch PackedDataset::batch(Index first, Index count) const {
  return file_->checked([&] { return read_batch(first, count); });
}

Batch PackedDataset::read_batch(Index first, Index count) const {
  require(first >= 0 && count > 0, "a batch of {} sequences from number {}", count, first);
  Batch batch{.sequences = count, .length = length_};
  const auto size = static_cast<std::size_t>(count * length_);
  batch.ids.reserve(size);
  batch.targets.reserve(size);
  if (!labels_.empty()) batch.labels.reserve(size);
  for (Index i = first; i < first + count; ++i) {
    const auto begin = static_cast<std::uint64_t>(in_stream(i)) * static_cast<std::uint64_t>(length_ + 1);
    for (std::uint64_t at = 0; at <= static_cast<std::uint64_t>(length_); ++at) {
      const StreamToken token = view_[begin + at];
      if (token.id() >= vocab_size_ || token.label() >= std::max<std::size_t>(view_.info.labels.size(), 1))
        fail(ErrorCode::kFormat, "{}: damaged at token {}; delete the file, it is made anew", file_->path().string(),
             begin + at);
      if (at < static_cast<std::uint64_t>(length_)) batch.ids.push_back(token.id());
      if (at == 0) continue;
      batch.targets.push_back(token.target() ? token.id() : kNoTarget);
      if (!labels_.empty()) batch.labels.push_back(static_cast<std::uint16_t>(token.label()));
    }
  }
  return batch;
}

}  // namespace dsmoe::train
