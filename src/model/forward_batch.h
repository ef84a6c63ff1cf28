// What one pass of the model runs: tokens of any number of sequences at any positions, one after another as rows. Every
// sequence is a slice of the rows. In inference it continues a KvSequence; in training it is whole, from position 0, and
// its keys and values live in the pass itself. Results of a slice have the same bits in any batch.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "dsmoe/context.h"
#include "model/kv_pool.h"
#include "ops/slice.h"

namespace dsmoe {

class ForwardBatch {
 public:
  ForwardBatch() = default;
  ForwardBatch(ForwardBatch&&) = default;
  ForwardBatch& operator=(ForwardBatch&&) = default;

  // Tokens that follow on those of a sequence, with room for them in its pool. Logits are wanted of the last `logits` of
  // them. All sequences of a batch are of one pool; each is in a batch once, and stays where it is until the pass is done.
  void add(Context& ctx, KvSequence& sequence, std::span<const std::int32_t> ids, Index logits = 1);
  // A batch of one sequence.
  static ForwardBatch of(Context& ctx, KvSequence& sequence, std::span<const std::int32_t> ids, Index logits = 1);
  // Whole sequences of `sequence_length` tokens, one after another, without a pool; logits of all.
  static ForwardBatch training(std::span<const std::int32_t> ids, Index sequence_length);

  // The batch of another rank (followed_passes.h): these tokens, and the slices of its sequences one after another. It has
  // no sequences that it could advance, nor logits.
  static ForwardBatch followed(std::vector<std::int32_t> ids, KvPool& pool);
  void add_followed(Index rows, Index first_position, Index context, std::vector<Index> tiles);

  // A batch of `rows` rows for a pass that is made for so many: this one, of one token and its logits of every sequence,
  // and copies of its row with the fewest keys behind it. They compute and store what that row does, bit by bit, with the
  // same experts and keys, so they need no memory that the batch does not read anyway. It refers to this batch, which
  // must stay, and has no sequences that it could advance.
  ForwardBatch padded(Index rows) const;
  Index shortest() const;  // that row
  // The tokens are these, [T] i32 where the work runs, instead of those that were given: some are not known here yet.
  void take_ids(Tensor placed);

  Index tokens() const { return static_cast<Index>(ids_.size()); }
  std::span<const std::int32_t> ids() const { return ids_; }
  const Tensor& placed_ids() const { return placed_ids_; }  // of take_ids(), else empty
  std::span<const ops::Slice> slices() const { return slices_; }
  Index logits(std::size_t slice) const { return logits_[slice]; }  // of its last rows
  Index all_logits() const;
  KvPool* pool() const { return pool_; }                      // null in training
  Index sequence_length() const { return sequence_length_; }  // in training

  // After a pass: the tokens are in their sequences.
  void advance() const;
  // Before a pass: the sequences are as they were when they were added.
  void check() const;

 private:
  std::vector<std::int32_t> ids_;
  Tensor placed_ids_;
  std::vector<ops::Slice> slices_;
  std::deque<std::vector<Index>> tiles_;  // of the slices, which refer to them
  std::vector<Index> logits_;
  std::vector<KvSequence*> sequences_;
  KvPool* pool_ = nullptr;
  Index sequence_length_ = 0;
};

}  // namespace dsmoe
