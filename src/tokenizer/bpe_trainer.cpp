#include "tokenizer/bpe_trainer.h"

#include <algorithm>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "core/utf8.h"
#include "tokenizer/bpe_learner.h"
#include "tokenizer/byte_level.h"

namespace dsmoe {

namespace {

// A piece is scanned for every merge in it. Longer ones (a line of dashes, base64) are learned from in parts.
constexpr std::size_t kMaxPiece = 256;

// User and assistant in turns, as DeepSeek's chat models write them.
constexpr const char* kChatTemplate =
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}"
    "{% else %}{{ message['content'] + '\\n\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

// The 256 characters of the byte-level alphabet, by code.
std::vector<std::string> alphabet() {
  std::vector<std::string> out;
  for (int b = 0; b < 256; ++b) out.push_back(byte_level::encode(std::string(1, static_cast<char>(b))));
  std::sort(out.begin(), out.end());  // UTF-8 sorts by code
  return out;
}

}  // namespace

BpeTrainer::BpeTrainer(const BpeTrainerOptions& options)
    : options_(options),
      pre_tokenizer_(pre_tokenizer_json(options.pre_tokenizer)),
      stages_(read_pre_tokenizer(json_read::parse_object(pre_tokenizer_, "pre_tokenizer"))),
      counted_stages_(std::min<std::size_t>(2, stages_.size())) {
  const std::vector<std::string> specials = special_tokens();
  const auto least = static_cast<std::int32_t>(256 + specials.size());
  require(options.vocab_size >= least && options.vocab_size <= (1 << 20),
          "a vocabulary of {} tokens: at least {} (256 bytes and {} special tokens) and at most {} are possible",
          options.vocab_size, least, specials.size(), 1 << 20);
  for (std::size_t i = 0; i < specials.size(); ++i)
    require(std::count(specials.begin(), specials.end(), specials[i]) == 1, "the special token {} is given twice",
            in_quotes(specials[i]));
}

std::vector<std::string> BpeTrainer::special_tokens() const {
  std::vector<std::string> out = {options_.bos_token, options_.eos_token, options_.pad_token};
  std::erase(out, "");
  return out;
}

void BpeTrainer::add(std::string_view text) {
  std::string repaired;
  if (utf8::valid_prefix(text) != text.size()) text = repaired = utf8::replace_invalid(text);
  if (!text.empty()) cut(text, 0, counted_stages_, scratch_, counts_, 1);
}

void BpeTrainer::cut(std::string_view text, std::size_t stage, std::size_t end, RegexScratch& scratch, Counts& counts,
                     std::uint64_t times) const {
  if (stage == end) {
    if (const auto it = counts.find(text); it != counts.end())
      it->second += times;
    else
      counts.emplace(text, times);
    return;
  }
  const SplitStage& s = stages_[stage];
  std::string prefixed;
  if (s.prefix_space && !text.starts_with(' ')) text = prefixed = " " + std::string(text);
  std::vector<PieceRange> pieces;
  split(s, text, scratch, pieces);
  for (const auto [from, to] : pieces) cut(text.substr(from, to - from), stage + 1, end, scratch, counts, times);
}

TokenizerParts BpeTrainer::train(const std::function<void(std::int32_t, std::int32_t)>& progress) const {
  Counts words;
  RegexScratch scratch;
  for (const auto& [piece, count] : counts_) cut(piece, counted_stages_, stages_.size(), scratch, words, count);

  TokenizerParts parts;
  parts.vocab = alphabet();
  const std::vector<std::string> specials = special_tokens();
  BpeLearner learner(parts.vocab, specials);
  for (const auto& [word, count] : words)
    for (std::size_t at = 0; at < word.size(); at += kMaxPiece)
      learner.add_word(std::string_view(word).substr(at, kMaxPiece), count);

  for (const std::string& token : specials) {
    parts.added_tokens.push_back({.id = static_cast<std::int32_t>(parts.vocab.size()), .content = token, .special = true});
    parts.vocab.push_back(token);
  }
  learner.learn(options_.vocab_size, options_.min_count, parts, progress);
  parts.pre_tokenizer = pre_tokenizer_;
  parts.bos_token = options_.bos_token;
  parts.eos_token = options_.eos_token;
  parts.pad_token = options_.pad_token;
  parts.add_bos = !options_.bos_token.empty();
  if (!options_.bos_token.empty() && !options_.eos_token.empty()) parts.chat_template = kChatTemplate;
  return parts;
}

}  // namespace dsmoe
