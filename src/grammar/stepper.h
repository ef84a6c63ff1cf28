// Runs an automaton with its stacks over bytes. Two calls for each byte: close() looks at all places where a byte can be
// matched, and advance() matches one, so that a walk over many alternatives for the next byte closes once.
#pragma once

#include <unordered_set>

#include "grammar/automaton.h"
#include "grammar/stacks.h"

namespace dsmoe::grammar {

// More places at once than this are refused by an Error. Usual grammars have fewer than ten.
inline constexpr std::size_t kMaxItems = 1 << 14;

// A set that keeps the order in which items came.
class ItemSet {
 public:
  void clear() { list_.clear(), many_.clear(); }
  void add(const Item& item);  // throws above kMaxItems
  std::span<const Item> items() const { return list_; }
  const Item& operator[](std::size_t i) const { return list_[i]; }
  std::size_t size() const { return list_.size(); }

 private:
  static constexpr std::size_t kFew = 16;  // looked through one by one
  std::vector<Item> list_;
  std::unordered_set<std::uint64_t> many_;  // all of them when there are more
};

class Stepper {
 public:
  explicit Stepper(const Automaton& automaton) : automaton_(automaton), called_(automaton.rules(), kNotCalled) {}

  // `at`: where rules have come to behind a byte, or the start. `open` becomes all items that match bytes next; `stacks`
  // gets the nodes of new calls. Returns whether the outermost rule may end here.
  bool close(Stacks& stacks, std::span<const Item> at, std::vector<Item>& open);
  // The items behind the byte; none when it does not match.
  void advance(std::span<const Item> open, std::uint8_t byte, std::vector<Item>& to);
  // What close() returns, alone.
  bool can_end(const Stacks& stacks, std::span<const Item> at);

 private:
  static constexpr std::uint32_t kNotCalled = 0xFFFFFFFF;
  struct NewCall {
    std::uint32_t rule = 0;
    ItemSet callers;
  };

  bool add_returns(const Stacks& stacks, std::span<const Item> at);
  void call(std::uint32_t rule, const Item& caller);
  void add_nodes(Stacks& stacks);

  const Automaton& automaton_;
  ItemSet items_;
  std::vector<NewCall> calls_;  // the first count_ are in use; the others keep their memory
  std::size_t count_ = 0;
  std::vector<std::uint32_t> called_;  // by rule: which of the calls
  std::vector<Item> callers_;
};

}  // namespace dsmoe::grammar
