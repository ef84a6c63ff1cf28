// Walks the vocabulary's tree and the automaton together, below some of its nodes, within one rule and those it calls.
#pragma once

#include "grammar/stepper.h"
#include "grammar/vocabulary.h"

namespace dsmoe::grammar {

class TokenWalk {
 public:
  TokenWalk(const Automaton& automaton, const Vocabulary& vocabulary, std::uint32_t state);

  void below(std::uint32_t node);

  std::vector<std::uint32_t> tokens;  // that can come, perhaps several times
  std::vector<std::uint32_t> exits;   // nodes with others below them, where the state's rule may end

 private:
  // Where the automaton is behind the bytes of one node of the path. Most levels are one item in a deterministic state
  // without calls: these have no lists.
  struct Level {
    Item one;
    bool plain = false, ends = false;
    std::vector<Item> at, open;
    std::size_t stacks = 0;  // nodes after closing
  };
  bool advance(const Level& parent, Level& child, std::uint8_t byte);
  void close(Level& level);
  bool is_plain(const Item& item) const;

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  Stepper stepper_;
  Stacks stacks_;
  std::vector<Level> levels_;
};

}  // namespace dsmoe::grammar
