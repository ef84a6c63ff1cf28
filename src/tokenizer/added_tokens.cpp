#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "core/fail.h"
#include "core/printable.h"
#include "tokenizer/marked_text.h"

namespace dsmoe {

namespace {
// Bounds the time per byte of text, and the trie.
constexpr std::size_t kMaxContent = 1024;

// Files of DeepSeek's later models have <｜User｜> and others without the mark; llama.cpp goes by the same look.
bool is_control(const AddedToken& token) {
  const std::string_view s = token.content;
  return token.special || (s.size() >= 4 && s.starts_with("<|") && s.ends_with("|>")) ||
         (s.size() >= 8 && s.starts_with("<｜") && s.ends_with("｜>"));
}

}  // namespace

void AddedTokens::add(const AddedToken& token, std::string_view content) {
  if (content.empty()) return;
  if (content.size() > kMaxContent)
    fail(ErrorCode::kFormat, "added token {} has {} bytes; at most {} are supported", in_quotes(content), content.size(),
         kMaxContent);
  if (token.single_word && !word_) word_.emplace(fmt::format("[{}]", kRustWord));
  starts_[static_cast<unsigned char>(content[0])] = true;
  std::size_t node = 0;
  for (const char c : content) {
    const auto [it, fresh] = nodes_[node].next.try_emplace(c, static_cast<std::int32_t>(nodes_.size()));
    node = static_cast<std::size_t>(it->second);
    if (fresh) nodes_.emplace_back();
  }
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
  control_.push_back(is_control(token));
}

// Some byte of [begin, end) is in a range. Such a token is passed over here, not in accept(): a message must neither make
// a control token nor hide one that the template writes before or behind it.
bool AddedTokens::touches(const Plain& plain, std::size_t begin, std::size_t end) {
  const auto range = first_behind(plain.ranges, plain.origin + begin);
  return range != plain.ranges.end() && range->begin < plain.origin + end;
}

std::optional<AddedTokens::Found> AddedTokens::find(std::string_view text, std::size_t from, const Plain& plain) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Found> longest;
    const Node* node = &nodes_[0];
    for (std::size_t end = begin; end < text.size();) {
      const auto it = node->next.find(text[end]);
      if (it == node->next.end()) break;
      node = &nodes_[static_cast<std::size_t>(it->second)];
      ++end;
      if (node->token < 0) continue;
      const auto token = static_cast<std::size_t>(node->token);
      if (!(control_[token] && touches(plain, begin, end))) longest = Found{begin, end, token};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

bool AddedTokens::word_at(std::string_view text, std::size_t at, RegexScratch& scratch) const {
  return word_->find(text.substr(at, utf8::sequence_at(text, at).length), 0, scratch).has_value();
}

bool AddedTokens::accept(Found& found, std::string_view text, std::size_t done, const Plain& plain,
                         RegexScratch& scratch) const {
  const AddedToken& token = tokens_[found.token];
  if (control_[found.token] && plain.everywhere) return false;
  // White space that the token before took along is no longer there.
  if (found.begin < done) return false;
  if (token.single_word) {
    if (found.begin > 0 && word_at(text, utf8::previous(text, found.begin), scratch)) return false;
    if (found.end < text.size() && word_at(text, found.end, scratch)) return false;
  }
  if (token.lstrip) {
    while (found.begin > done) {
      std::size_t at = utf8::previous(text, found.begin);
      const std::size_t before = at;
      if (!utf8::is_white_space(utf8::next(text, at))) break;
      found.begin = before;
    }
  }
  if (token.rstrip) {
    while (found.end < text.size()) {
      std::size_t at = found.end;
      if (!utf8::is_white_space(utf8::next(text, at))) break;
      found.end = at;
    }
  }
  return true;
}

}  // namespace dsmoe
