// The built-in corpus as a data set without end.
#pragma once

#include "dsmoe/tokenizer.h"
#include "train/data/document_encoder.h"
#include "train/dataset.h"

namespace dsmoe::train {

// Sequence n is S + 1 tokens of the documents from n * 2^20 on, packed by the same rule as files (DocumentEncoder); no
// other sequence has any of them. Even sequences begin with a document; odd ones at a random token of one, so that the ends
// of documents longer than a sequence are learned too. The held-out part has the documents of the upper half of all
// numbers.
class BuiltinDataset : public Dataset {
 public:
  BuiltinDataset(const Tokenizer& tokenizer, Index sequence_length, std::uint64_t seed, bool held_out);

  Batch batch(Index first, Index count) const override;
  Index sequences() const override;
  std::span<const std::string> labels() const override;

 private:
  void sequence(std::uint64_t number, std::vector<StreamToken>& out) const;

  DocumentEncoder encoder_;
  Index length_;
  std::uint64_t seed_;
  bool held_out_;
};

}  // namespace dsmoe::train
