// What is true of a grammar as a whole: which rules can be empty, which ones have an end, which ones call themselves.
#pragma once

#include <vector>

#include "grammar/grammar.h"

namespace dsmoe::grammar {

struct Analysis {
  std::vector<char> nullable;            // by expression: matches the empty text
  std::vector<char> productive;          // by expression: matches some text
  std::vector<char> recursive;           // by rule: calls itself, perhaps through others
  std::vector<std::uint32_t> order;      // rules, those that are called before those that call them, but for recursion
  std::vector<std::uint32_t> left_rank;  // by rule: lower than that of every rule that it can call before any byte
};

// Throws an Error that names the rules when a rule is not defined, calls itself before any character (left recursion), or
// when `root` matches no text at all.
Analysis analyse(const Grammar& grammar);

}  // namespace dsmoe::grammar
