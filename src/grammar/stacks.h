// Calls that have not returned. A node stands for one call of a rule at one place of the text; several callers that are at
// that place share it, so that ambiguous grammars need few nodes where separate stacks would be exponentially many
// (a graph-structured stack, as in Tomita's and Earley's parsers).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsmoe::grammar {

// Where a rule has come to, and the node of its call. As an entry of another node: who called, and where it goes on.
struct Item {
  std::uint32_t state = 0, node = 0;
  bool operator==(const Item&) const = default;
};

class Stacks {
 public:
  static constexpr std::uint32_t kOutermost = 0;  // the node without callers

  std::size_t size() const { return first_.size() - 1; }
  std::span<const Item> callers(std::uint32_t node) const {
    return {callers_.data() + first_[node], callers_.data() + first_[node + 1]};
  }
  std::uint32_t add(std::span<const Item> callers) {
    callers_.insert(callers_.end(), callers.begin(), callers.end());
    first_.push_back(static_cast<std::uint32_t>(callers_.size()));
    return static_cast<std::uint32_t>(size() - 1);
  }
  void truncate(std::size_t nodes) {
    first_.resize(nodes + 1);
    callers_.resize(first_.back());
  }
  // Drops the nodes that no item needs, and renumbers the items.
  void keep_only(std::span<Item> items);

 private:
  std::vector<std::uint32_t> first_{0, 0};  // of each node's callers, and the end
  std::vector<Item> callers_;
};

}  // namespace dsmoe::grammar
