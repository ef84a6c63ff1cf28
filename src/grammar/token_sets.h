// Which tokens can come next, worked out once for each state of the automaton and kept. A token may go beyond the end of
// the rule that it begins in; where along the tokens that happens is kept too, as a set of nodes of the vocabulary's tree,
// and the caller goes on from there. So what is kept does not depend on the stack:
//
//   tokens(stack) = tokens(state, {root}) + tokens(caller's state, exits of that) + tokens(its caller's, exits of that) ...
//
// until a rule has no exits. docs/design/grammar.md has the measurements.
#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

namespace dsmoe::grammar {

// Few tokens as a list, many as bits.
class TokenSet {
 public:
  TokenSet() = default;
  explicit TokenSet(std::vector<std::uint64_t> bits);
  void add_to(std::span<std::uint64_t> mask) const;
  bool empty() const { return ids_.empty() && bits_.empty(); }
  std::size_t bytes() const { return ids_.size() * sizeof(ids_[0]) + bits_.size() * sizeof(bits_[0]); }

 private:
  std::vector<std::uint32_t> ids_;
  std::vector<std::uint64_t> bits_;
};

class TokenSets {
 public:
  using Exits = std::uint32_t;  // a set of nodes of the tree, by number
  static constexpr Exits kRoot = 0, kNone = 1;

  struct Entry {
    TokenSet tokens;
    Exits exits = kNone;
  };

  TokenSets(const Automaton& automaton, const Vocabulary& vocabulary);

  // What comes from a state at these nodes. May be called from several threads; the entry stays where it is.
  const Entry& get(std::uint32_t state, Exits from) const;

  // Makes the entries that any stack can ask for, up to this number and some tenths of a second.
  void prepare(std::size_t most) const;

  std::size_t entries() const;
  std::size_t bytes() const;  // of what is kept: it grows with the places that texts come to

 private:
  Entry make(std::uint32_t state, const std::vector<std::uint32_t>& nodes, std::vector<std::uint32_t>& exits) const;

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  std::vector<std::uint32_t> classes_;

  struct NodesHash {
    std::size_t operator()(const std::vector<std::uint32_t>& nodes) const;
  };
  mutable std::atomic<std::uint64_t> steps_ = 0;  // of all walks
  mutable std::shared_mutex mutex_;
  mutable std::unordered_map<std::uint64_t, std::unique_ptr<const Entry>> entries_;  // by class and exits
  mutable std::unordered_map<std::vector<std::uint32_t>, Exits, NodesHash> numbers_;
  mutable std::vector<const std::vector<std::uint32_t>*> nodes_;  // keys of numbers_
};

}  // namespace dsmoe::grammar
