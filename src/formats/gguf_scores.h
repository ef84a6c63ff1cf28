// Merges of a vocabulary of characters as GGUF writes them: a score per token. Readers of such files join the two
// neighbours whose sum is the token of the best score, whatever the two are; merges are a list of pairs, the first of which
// is joined.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dsmoe {

// All pairs of tokens whose sum is a token, the best sum first. `joins`: whether a token may be in a pair or be a sum.
std::vector<std::string> merges_of_scores(std::span<const std::string> tokens, std::span<const double> scores,
                                          const std::vector<bool>& joins);

// Scores that order the sums as the merges do. Empty when no scores can: pairs of one sum are apart in the list, or a pair
// whose sum is a token is not in it.
std::vector<float> scores_of_merges(std::span<const std::string> tokens, std::span<const std::string> merges,
                                    const std::vector<bool>& joins);

}  // namespace dsmoe
