#include "grammar/token_walk.h"

#include <algorithm>

#include "core/fail.h"

namespace dsmoe::grammar {

TokenWalk::TokenWalk(const Automaton& automaton, const Vocabulary& vocabulary, std::uint32_t state)
    : tokens(vocabulary.words()),
      automaton_(automaton),
      vocabulary_(vocabulary),
      stepper_(automaton),
      levels_(vocabulary.longest() + 1) {
  levels_[0].one = {state, Stacks::kOutermost};
  levels_[0].plain = is_plain(levels_[0].one);
  levels_[0].at = {levels_[0].one};
  close(levels_[0]);
}

bool TokenWalk::is_plain(const Item& item) const {
  return automaton_.plain(item.state) && (item.node == Stacks::kOutermost || !automaton_.final(item.state));
}

std::uint32_t TokenWalk::next_of(std::uint32_t state, std::uint8_t byte) {
  std::unique_ptr<Table>& table = tables_[state % tables_.size()];
  if (!table) table = std::make_unique<Table>();
  if (table->state == state) {
    table->uses = std::min(table->uses + 1, kMostUses);
    return table->to[byte];
  }
  const std::span<const ByteEdge> edges = automaton_.edges(state);
  if (--table->uses < 0) {  // not worth its place any more
    table->state = state;
    table->uses = 0;
    table->to.fill(kNowhere);
    for (const ByteEdge& e : edges) std::fill(table->to.begin() + e.first, table->to.begin() + e.last + 1, e.to);
    return table->to[byte];
  }
  for (const ByteEdge& e : edges)
    if (byte <= e.last) return byte >= e.first ? e.to : kNowhere;
  return kNowhere;
}

void TokenWalk::close(Level& level) {
  if (level.plain)
    level.ends = automaton_.final(level.one.state);  // only the outermost rule may end in a plain state
  else
    level.ends = stepper_.close(stacks_, level.at, level.open), steps += level.at.size() + level.open.size();
  level.stacks = stacks_.size();
}

bool TokenWalk::advance(const Level& parent, Level& child, std::uint8_t byte) {
  if (parent.plain) {
    const std::uint32_t to = next_of(parent.one.state, byte);
    if (to == kNowhere) return false;
    child.one = {to, parent.one.node};
    child.plain = is_plain(child.one);
    if (!child.plain) child.at.assign(1, child.one);
    return true;
  }
  steps += parent.open.size();
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
    if (++steps > kMaxWalk)
      fail(ErrorCode::kUnsupported, "the grammar is too ambiguous: finding the tokens that may come next takes too long");
    if (!advance(parent, child, vocabulary_.byte(i))) {
      i = vocabulary_.end(i);
      continue;
    }
    for (const std::uint32_t id : vocabulary_.tokens(i)) tokens[id / 64] |= std::uint64_t{1} << (id % 64);
    if (!vocabulary_.is_leaf(i)) {
      if (stacks_.size() != parent.stacks) stacks_.truncate(parent.stacks);
      close(child);
      if (child.ends) exits.push_back(i);
    }
    ++i;
  }
}

}  // namespace dsmoe::grammar
