// A grammar as a machine over bytes: each rule is a finite automaton whose edges are bytes or calls of other rules. A
// matcher keeps the calls that have not returned on stacks (stacks.h). docs/design/grammar.md has the reasons.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/grammar.h"

namespace dsmoe::grammar {

struct ByteEdge {
  std::uint8_t first = 0, last = 0;
  std::uint32_t to = 0;
  bool operator==(const ByteEdge&) const = default;
};

// A call matches at least one byte: for rules that match the empty text, the automaton has a way around the call.
struct CallEdge {
  std::uint32_t rule = 0, to = 0;  // `to`: where the caller goes on
  bool operator==(const CallEdge&) const = default;
};

class Automaton {
 public:
  explicit Automaton(const Grammar& grammar);  // throws what analyse() throws, and when the automaton would be too large

  std::size_t states() const { return final_.size(); }
  std::size_t rules() const { return starts_.size(); }
  std::uint32_t root() const { return 0; }  // rules that are called, in the order in which they were met
  std::uint32_t start(std::uint32_t rule) const { return starts_[rule]; }
  std::uint32_t left_rank(std::uint32_t rule) const { return left_ranks_[rule]; }
  std::uint32_t rule_of(std::uint32_t state) const { return rule_of_[state]; }

  std::span<const ByteEdge> edges(std::uint32_t state) const {
    return {edges_.data() + first_edge_[state], edges_.data() + first_edge_[state + 1]};
  }
  std::span<const CallEdge> calls(std::uint32_t state) const {
    return {calls_.data() + first_call_[state], calls_.data() + first_call_[state + 1]};
  }
  bool final(std::uint32_t state) const { return final_[state]; }  // the rule may end here
  bool only_ends(std::uint32_t state) const {                      // and nothing else
    return final_[state] && edges(state).empty() && calls(state).empty();
  }
  bool deterministic(std::uint32_t state) const { return deterministic_[state]; }  // no byte is on two edges
  bool plain(std::uint32_t state) const { return plain_[state]; }                  // that, and no calls

  // Classes of states that no text of up to `bytes` bytes tells apart: by what it matches in the rule and the rules it
  // calls, and where along it the rule may end.
  std::vector<std::uint32_t> classes(std::size_t bytes) const;

 private:
  friend class AutomatonBuilder;
  std::vector<std::uint32_t> starts_, left_ranks_, rule_of_;
  std::vector<std::uint32_t> first_edge_{0}, first_call_{0};
  std::vector<ByteEdge> edges_;
  std::vector<CallEdge> calls_;
  std::vector<char> final_, deterministic_, plain_;
};

}  // namespace dsmoe::grammar
