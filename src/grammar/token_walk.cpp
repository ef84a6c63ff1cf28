#include "grammar/token_walk.h"

namespace dsmoe::grammar {

TokenWalk::TokenWalk(const Automaton& automaton, const Vocabulary& vocabulary, std::uint32_t state)
    : automaton_(automaton), vocabulary_(vocabulary), stepper_(automaton), levels_(vocabulary.longest() + 1) {
  levels_[0].one = {state, Stacks::kOutermost};
  levels_[0].plain = is_plain(levels_[0].one);
  levels_[0].at = {levels_[0].one};
  close(levels_[0]);
}

bool TokenWalk::is_plain(const Item& item) const {
  return automaton_.deterministic(item.state) && automaton_.calls(item.state).empty() &&
         (item.node == Stacks::kOutermost || !automaton_.final(item.state));
}

void TokenWalk::close(Level& level) {
  if (level.plain)
    level.ends = automaton_.final(level.one.state);  // only the outermost rule may end in a plain state
  else
    level.ends = stepper_.close(stacks_, level.at, level.open);
  level.stacks = stacks_.size();
}

bool TokenWalk::advance(const Level& parent, Level& child, std::uint8_t byte) {
  if (parent.plain) {
    for (const ByteEdge& e : automaton_.edges(parent.one.state)) {
      if (byte < e.first) return false;
      if (byte > e.last) continue;
      child.one = {e.to, parent.one.node};
      child.plain = is_plain(child.one);
      if (!child.plain) child.at.assign(1, child.one);
      return true;
    }
    return false;
  }
  stepper_.advance(parent.open, byte, child.at);
  if (child.at.empty()) return false;
  child.one = child.at[0];
  child.plain = child.at.size() == 1 && is_plain(child.one);
  return true;
}

void TokenWalk::below(std::uint32_t node) {
  const std::size_t depth = vocabulary_.depth(node);
  if (levels_[0].ends) exits.push_back(node);
  for (std::uint32_t i = node + 1; i < vocabulary_.end(node);) {
    const std::size_t level = vocabulary_.depth(i) - depth;
    const Level& parent = levels_[level - 1];
    Level& child = levels_[level];
    if (!advance(parent, child, vocabulary_.byte(i))) {
      i = vocabulary_.end(i);
      continue;
    }
    const auto ids = vocabulary_.tokens(i);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    if (!vocabulary_.is_leaf(i)) {
      if (stacks_.size() != parent.stacks) stacks_.truncate(parent.stacks);
      close(child);
      if (child.ends) exits.push_back(i);
    }
    ++i;
  }
}

}  // namespace dsmoe::grammar
