// Learns a byte-level BPE vocabulary from text: count the pieces that the pre-tokenizer cuts, then join the most frequent
// pair of neighbouring tokens, over and over (Sennrich et al., 2016).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsmoe/tokenizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace dsmoe {

struct BpeTrainerOptions {
  std::int32_t vocab_size = 8192;  // bytes and special tokens included
  // A name that pre_tokenizer_json() knows. DeepSeek LLM's pipeline: every digit is a token, which makes arithmetic
  // learnable, line ends never join other characters, and other engines know it by this name.
  std::string pre_tokenizer = "deepseek-llm";
  std::uint64_t min_count = 2;  // a pair seen less often is not joined
  // Special tokens, directly behind the 256 bytes; "" for none. The names of DeepSeek's own vocabularies.
  std::string bos_token = "<｜begin▁of▁sentence｜>", eos_token = "<｜end▁of▁sentence｜>", pad_token = "<｜▁pad▁｜>";
};

class BpeTrainer {
 public:
  explicit BpeTrainer(const BpeTrainerOptions& options);

  // Ill-formed parts count as U+FFFD, as in Tokenizer::encode.
  void add(std::string_view text);

  // The same texts in any order give the same result: of equally frequent pairs, the one whose left token has the lower
  // id is joined first, then the one whose right token has. Ids 0 to 255 are the bytes in the order of the byte-level
  // alphabet, as in GPT-2. The vocabulary stays smaller than asked for when the text has no more pairs to join.
  TokenizerParts train(const std::function<void(std::int32_t learned, std::int32_t of)>& progress = {}) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Counts = std::unordered_map<std::string, std::uint64_t, Hash, std::equal_to<>>;

  void cut(std::string_view text, std::size_t stage, std::size_t end, RegexScratch& scratch, Counts& counts,
           std::uint64_t times) const;
  std::vector<std::string> special_tokens() const;

  BpeTrainerOptions options_;
  std::string pre_tokenizer_;
  std::vector<SplitStage> stages_;
  // Pieces after the first stages only: the same ones come again and again, and the later stages see each once.
  std::size_t counted_stages_;
  Counts counts_;
  RegexScratch scratch_;
};

}  // namespace dsmoe
