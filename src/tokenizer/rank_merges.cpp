#include "tokenizer/rank_merges.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe {

namespace {

constexpr std::size_t kLongestJoined = 1024;  // bytes of a token's text; the time for one grows with their square
constexpr std::size_t kNoToken = std::numeric_limits<std::size_t>::max();

// Ranks of tokens by their texts.
using Ranks = std::unordered_map<std::string_view, std::size_t>;

// Where the first part of a token ends when it is down to two; 0 when it is never down to two.
std::size_t split_of(std::string_view token, const Ranks& ranks) {
  std::vector<std::size_t> ends, sums;  // of each part; the rank of what it makes with the next one
  for (std::size_t at = 1; at <= token.size(); ++at)
    if (at == token.size() || (static_cast<unsigned char>(token[at]) & 0xC0) != 0x80) ends.push_back(at);
  const auto sum_at = [&](std::size_t i) {
    if (i + 1 == ends.size()) return kNoToken;
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    const auto sum = ranks.find(token.substr(begin, ends[i + 1] - begin));
    return sum == ranks.end() ? kNoToken : sum->second;
  };
  for (std::size_t i = 0; i < ends.size(); ++i) sums.push_back(sum_at(i));
  while (ends.size() > 2) {
    const auto first = std::min_element(sums.begin(), sums.end());
    if (*first == kNoToken) return 0;
    const auto i = static_cast<std::size_t>(first - sums.begin());
    ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(i));
    sums.erase(first);
    sums[i] = sum_at(i);
    if (i > 0) sums[i - 1] = sum_at(i - 1);
  }
  return ends.size() == 2 ? ends[0] : 0;
}

}  // namespace

std::vector<std::string> merges_of_ranks(std::span<const std::string> tokens, const std::vector<bool>& joins) {
  Ranks ranks;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    // A space is what stands between the two of a merge.
    if (!joins[i] || tokens[i].empty() || tokens[i].find(' ') != std::string::npos) continue;
    if (tokens[i].size() > kLongestJoined)
      fail(ErrorCode::kFormat, "tokenizer: the token {} has {} bytes; at most {} are supported", in_quotes(tokens[i]),
           tokens[i].size(), kLongestJoined);
    if (!ranks.try_emplace(tokens[i], i).second)
      fail(ErrorCode::kFormat, "tokenizer: two tokens are {}", in_quotes(tokens[i]));
  }
  std::vector<std::string> merges;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view token = tokens[i];
    const auto known = ranks.find(token);
    if (known == ranks.end() || known->second != i) continue;
    const std::size_t split = split_of(token, ranks);
    if (split == 0) continue;
    const std::string_view left = token.substr(0, split), right = token.substr(split);
    if (ranks.contains(left) && ranks.contains(right)) merges.push_back(std::string(left).append(" ").append(right));
  }
  return merges;
}

}  // namespace dsmoe
