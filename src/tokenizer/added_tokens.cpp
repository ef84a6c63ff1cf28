#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe {

namespace {
// Bounds the time per byte of text, and the trie.
constexpr std::size_t kMaxContent = 1024;
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
}

std::optional<AddedTokens::Found> AddedTokens::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Found> longest;
    const Node* node = &nodes_[0];
    for (std::size_t end = begin; end < text.size();) {
      const auto it = node->next.find(text[end]);
      if (it == node->next.end()) break;
      node = &nodes_[static_cast<std::size_t>(it->second)];
      ++end;
      if (node->token >= 0) longest = Found{begin, end, static_cast<std::size_t>(node->token)};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

bool AddedTokens::word_at(std::string_view text, std::size_t at, RegexScratch& scratch) const {
  return word_->find(text.substr(at, utf8::sequence_at(text, at).length), 0, scratch).has_value();
}

bool AddedTokens::accept(Found& found, std::string_view text, std::size_t done, bool parse_special,
                         RegexScratch& scratch) const {
  const AddedToken& token = tokens_[found.token];
  if (token.special && !parse_special) return false;
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
