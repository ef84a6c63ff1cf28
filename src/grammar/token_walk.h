// Walks the vocabulary's tree and the automaton together, below some of its nodes, within one rule and those it calls.
#pragma once

#include <array>
#include <memory>

#include "grammar/stepper.h"
#include "grammar/vocabulary.h"

namespace dsmoe::grammar {

// Steps of one walk, each a node of the tree or a place of the automaton there. A usual grammar needs as many as the tree
// has nodes; above this the grammar is refused by an Error, after some seconds.
inline constexpr std::uint64_t kMaxWalk = 100'000'000;

class TokenWalk {
 public:
  TokenWalk(const Automaton& automaton, const Vocabulary& vocabulary, std::uint32_t state);

  void below(std::uint32_t node);

  std::vector<std::uint64_t> tokens;  // those that can come, as bits
  std::uint64_t steps = 0;            // taken so far
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
  std::uint32_t next_of(std::uint32_t state, std::uint8_t byte);

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  Stepper stepper_;
  Stacks stacks_;
  std::vector<Level> levels_;

  // The edges of states that were looked at last, by byte: a walk is in few of them most of the time.
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFF;
  static constexpr int kMostUses = 64;
  struct Table {
    std::uint32_t state = kNowhere;
    int uses = 0;  // how long it stays when others want its place
    std::array<std::uint32_t, 256> to;
  };
  std::array<std::unique_ptr<Table>, 32> tables_;
};

}  // namespace dsmoe::grammar
