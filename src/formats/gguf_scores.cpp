#include "formats/gguf_scores.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <unordered_map>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe {

namespace {

constexpr std::size_t kLongest = 1024;                 // bytes of a token that joins
constexpr std::size_t kMost = std::size_t{128} << 20;  // bytes of all pairs, which a small file could make many times more

struct Pair {
  std::size_t sum, left_length, right_length;  // lengths in characters
  std::string text;                            // "left right"
};

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::vector<Pair> pairs_of(std::span<const std::string> tokens, const std::vector<bool>& joins) {
  std::unordered_map<std::string_view, std::size_t> known;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (joins[i] && !known.try_emplace(tokens[i], i).second)
      fail(ErrorCode::kFormat, "tokenizer: two tokens are {}", in_quotes(tokens[i]));
  std::size_t bytes = 0;
  std::vector<Pair> out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view token = tokens[i];
    if (!joins[i]) continue;
    if (token.size() > kLongest)
      fail(ErrorCode::kFormat, "tokenizer: the token {} has {} bytes; at most {} are supported", in_quotes(token),
           token.size(), kLongest);
    const auto characters = static_cast<std::size_t>(std::count_if(token.begin(), token.end(), begins_character));
    std::size_t left = 0;
    std::vector<Pair> of_token;
    for (std::size_t at = 1; at < token.size(); ++at) {
      if (!begins_character(token[at])) continue;
      ++left;
      const std::string_view l = token.substr(0, at), r = token.substr(at);
      if (!known.contains(l) || !known.contains(r)) continue;
      of_token.push_back({i, left, characters - left, std::string(l).append(" ").append(r)});
      if (bytes += sizeof(Pair) + token.size(); bytes > kMost)
        fail(ErrorCode::kUnsupported, "tokenizer: its tokens are sums of other tokens in too many ways");
    }
    out.insert(out.end(), of_token.rbegin(), of_token.rend());  // the longest left part first
  }
  return out;
}

// A space is what stands between the two of a merge.
std::vector<bool> without_spaces(std::span<const std::string> tokens, std::vector<bool> joins) {
  for (std::size_t i = 0; i < tokens.size(); ++i) joins[i] = joins[i] && tokens[i].find(' ') == std::string::npos;
  return joins;
}

}  // namespace

std::vector<std::string> merges_of_scores(std::span<const std::string> tokens, std::span<const double> scores,
                                          const std::vector<bool>& joins) {
  std::vector<Pair> pairs = pairs_of(tokens, without_spaces(tokens, joins));
  for (const Pair& p : pairs)
    if (!std::isfinite(scores[p.sum]))
      fail(ErrorCode::kFormat, "tokenizer: the score of {} is not a number", in_quotes(tokens[p.sum]));
  const auto all_alike = [&] {
    return std::all_of(pairs.begin(), pairs.end(), [&](const Pair& p) { return scores[p.sum] == scores[pairs[0].sum]; });
  };
  if (pairs.size() > 1 && pairs.front().sum != pairs.back().sum && all_alike())
    fail(ErrorCode::kUnsupported,
         "tokenizer: all scores are {}, so nothing says which tokens are joined first; take a file with the tokenizer's "
         "scores",
         scores[pairs[0].sum]);
  std::stable_sort(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) {
    if (scores[a.sum] != scores[b.sum]) return scores[a.sum] > scores[b.sum];
    return a.left_length != b.left_length ? a.left_length > b.left_length : a.right_length > b.right_length;
  });
  std::vector<std::string> merges;
  merges.reserve(pairs.size());
  for (Pair& p : pairs) merges.push_back(std::move(p.text));
  return merges;
}

std::vector<float> scores_of_merges(std::span<const std::string> tokens, std::span<const std::string> merges,
                                    const std::vector<bool>& joins) {
  std::unordered_map<std::string_view, std::size_t> known;
  for (std::size_t i = 0; i < tokens.size(); ++i) known.try_emplace(tokens[i], i);
  std::vector<float> scores(tokens.size(), -static_cast<float>(merges.size() + 1));
  std::set<std::string_view> listed;
  std::vector<bool> seen(tokens.size());
  std::size_t last = tokens.size();
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    std::string sum = merges[rank];
    const std::size_t space = sum.find(' ');
    if (space == std::string::npos) return {};
    const auto at = known.find(sum.erase(space, 1));
    if (at == known.end()) return {};
    if (at->second != last && seen[at->second]) return {};  // of another sum's pairs in between
    listed.insert(merges[rank]);
    last = at->second, seen[last] = true;
    if (scores[last] < -static_cast<float>(rank)) scores[last] = -static_cast<float>(rank);
  }
  for (const Pair& p : pairs_of(tokens, without_spaces(tokens, joins)))
    if (!listed.contains(p.text)) return {};
  return scores;
}

}  // namespace dsmoe
