// Merges of a vocabulary that has none of its own but an order, as tiktoken's have: of all neighbours in a piece the two
// are joined whose sum is the first token, the leftmost two of several.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace dsmoe {

// A merge "left right" for every token that is joined of two, in the order of the tokens, which are texts as tokenizer.json
// writes them. `joins`: whether a token may be joined, or be what others are joined to. Joining by this list gives what
// joining by the order gives, always (docs/design/tokenizer-ranks.md). A token that is never joined has no merge.
std::vector<std::string> merges_of_ranks(std::span<const std::string> tokens, const std::vector<bool>& joins);

}  // namespace dsmoe
