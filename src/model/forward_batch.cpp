#include "model/forward_batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/fail.h"

namespace dsmoe {

void ForwardBatch::add(Context& ctx, KvSequence& sequence, std::span<const std::int32_t> ids, Index logits) {
  const auto tokens = static_cast<Index>(ids.size());
  require(tokens > 0, "no tokens to run");
  require(logits >= 0 && logits <= tokens, "logits of {} tokens asked for, {} given", logits, tokens);
  require(sequence_length_ == 0 && (pool_ == nullptr || pool_ == &sequence.pool()),
          "the sequences of a batch are to be in one KV cache");
  require(std::find(sequences_.begin(), sequences_.end(), &sequence) == sequences_.end(),
          "a sequence cannot be in a batch twice");
  sequence.reserve(ctx, tokens);
  tiles_.push_back(sequence.tiles());
  slices_.push_back({this->tokens(), tokens, sequence.length(), tiles_.back(), sequence.context()});
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  logits_.push_back(logits);
  sequences_.push_back(&sequence);
  pool_ = &sequence.pool();
}

ForwardBatch ForwardBatch::of(Context& ctx, KvSequence& sequence, std::span<const std::int32_t> ids, Index logits) {
  ForwardBatch batch;
  batch.add(ctx, sequence, ids, logits);
  return batch;
}

ForwardBatch ForwardBatch::training(std::span<const std::int32_t> ids, Index sequence_length) {
  const auto tokens = static_cast<Index>(ids.size());
  require(sequence_length > 0 && tokens > 0 && tokens % sequence_length == 0, "{} tokens are no whole sequences of {}",
          tokens, sequence_length);
  ForwardBatch batch;
  batch.ids_.assign(ids.begin(), ids.end());
  batch.sequence_length_ = sequence_length;
  for (Index row = 0; row < tokens; row += sequence_length) {
    std::vector<Index>& tiles = batch.tiles_.emplace_back();
    for (Index t = 0; t < sequence_length; t += ops::kAttentionTile) tiles.push_back(row + t);
    batch.slices_.push_back({row, sequence_length, 0, tiles, sequence_length});
    batch.logits_.push_back(sequence_length);
  }
  return batch;
}

ForwardBatch ForwardBatch::followed(std::vector<std::int32_t> ids, KvPool& pool) {
  ForwardBatch batch;
  batch.ids_ = std::move(ids), batch.pool_ = &pool;
  return batch;
}

void ForwardBatch::add_followed(Index rows, Index first_position, Index context, std::vector<Index> tiles) {
  const Index first = slices_.empty() ? 0 : slices_.back().first_row + slices_.back().rows;
  tiles_.push_back(std::move(tiles));
  slices_.push_back({first, rows, first_position, tiles_.back(), context});
  logits_.push_back(0);
}

Index ForwardBatch::shortest() const {
  return std::min_element(slices_.begin(), slices_.end(),
                          [](const ops::Slice& a, const ops::Slice& b) { return a.length() < b.length(); }) -
         slices_.begin();
}

ForwardBatch ForwardBatch::padded(Index rows) const {
  require(tokens() > 0 && rows >= tokens() && static_cast<Index>(slices_.size()) == tokens() && all_logits() == tokens(),
          "{} tokens cannot be padded to {} rows", tokens(), rows);
  const auto row = static_cast<std::size_t>(shortest());
  ForwardBatch out;
  out.ids_ = ids_, out.slices_ = slices_, out.pool_ = pool_;
  out.ids_.resize(static_cast<std::size_t>(rows), ids_[row]);
  out.slices_.resize(static_cast<std::size_t>(rows), slices_[row]);
  for (std::size_t i = slices_.size(); i < out.slices_.size(); ++i) out.slices_[i].first_row = static_cast<Index>(i);
  out.logits_.resize(static_cast<std::size_t>(rows), 1);
  return out;
}

void ForwardBatch::take_ids(Tensor placed) {
  require(placed.dtype() == DType::kI32 && placed.numel() == tokens(), "{} tokens are given for a batch of {}",
          placed.numel(), tokens());
  placed_ids_ = std::move(placed);
}

Index ForwardBatch::all_logits() const { return std::accumulate(logits_.begin(), logits_.end(), Index{0}); }

void ForwardBatch::check() const {
  for (std::size_t i = 0; i < sequences_.size(); ++i)
    require(sequences_[i]->length() == slices_[i].first_position && sequences_[i]->tiles() == tiles_[i],
            "sequence {} of the batch has changed since it was added", i);
}

void ForwardBatch::advance() const {
  for (std::size_t i = 0; i < sequences_.size(); ++i) sequences_[i]->advance(slices_[i].rows);
}

}  // namespace dsmoe
