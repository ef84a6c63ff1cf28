// From normalized text without added tokens to ids: the stages, then the merges.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/word_cache.h"

namespace dsmoe {

// What one thread needs to encode. Its cache belongs to one tokenizer.
struct EncodeState {
  RegexScratch regex;
  BpeScratch bpe;
  WordCache cache;
};

struct Encoder {
  std::vector<SplitStage> stages;
  Bpe bpe;
  const Vocab& vocab;

  // Appends the ids of a piece that the first `stage` stages have made.
  void encode(std::string_view piece, std::size_t stage, EncodeState& state, std::vector<std::int32_t>& out) const;

 private:
  void encode_uncached(std::string_view piece, std::size_t stage, EncodeState& state, std::vector<std::int32_t>& out) const;
  bool split_isolated(std::string_view piece, std::size_t stage, EncodeState& state, std::vector<std::int32_t>& out) const;
};

}  // namespace dsmoe
