// Finds added tokens in a text: at each place the longest one, from left to right.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsmoe/tokenizer.h"
#include "tokenizer/regex.h"

namespace dsmoe {

class AddedTokens {
 public:
  // `content` is what to look for: the token's own, or that after normalization.
  void add(const AddedToken& token, std::string_view content);
  bool empty() const { return tokens_.empty(); }

  struct Segment {
    std::string_view text;  // between tokens, when id is -1
    std::int32_t id = -1;
  };
  // Where control tokens count as text: everywhere, or in some ranges of a longer text, in which this one begins at
  // `origin`.
  struct Plain {
    bool everywhere = false;
    std::span<const TextRange> ranges = {};
    std::size_t origin = 0;
  };
  // Calls f(Segment) for all of the text in order.
  template <class F>
  void for_each(std::string_view text, const Plain& plain, RegexScratch& scratch, F&& f) const {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
      auto found = find(text, at, plain);
      if (!found) break;
      at = found->end;
      if (!accept(*found, text, done, plain, scratch)) continue;
      if (done < found->begin) f(Segment{text.substr(done, found->begin - done)});
      f(Segment{{}, tokens_[found->token].id});
      done = found->end;
    }
    if (done < text.size()) f(Segment{text.substr(done)});
  }

 private:
  struct Found {
    std::size_t begin, end, token;
  };
  std::optional<Found> find(std::string_view text, std::size_t from, const Plain& plain) const;
  // Whether the token may stand there; widens the range by the white space that it takes along.
  bool accept(Found& found, std::string_view text, std::size_t done, const Plain& plain, RegexScratch& scratch) const;
  static bool touches(const Plain& plain, std::size_t begin, std::size_t end);
  bool word_at(std::string_view text, std::size_t at, RegexScratch& scratch) const;

  struct Node {
    std::int32_t token = -1;
    std::unordered_map<char, std::int32_t> next;
  };
  std::vector<AddedToken> tokens_;
  std::vector<bool> control_;        // of each token
  std::vector<Node> nodes_{Node{}};  // a trie of bytes; the root is first
  std::array<bool, 256> starts_{};   // bytes that some token begins with
  std::optional<Regex> word_;        // compiled when a token asks for single_word
};

}  // namespace dsmoe
