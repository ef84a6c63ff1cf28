#include "grammar/stepper.h"

#include <algorithm>
#include <numeric>

#include "core/fail.h"

namespace dsmoe::grammar {

void ItemSet::add(const Item& item) {
  const auto key = [](const Item& i) { return static_cast<std::uint64_t>(i.node) << 32 | i.state; };
  if (list_.size() < kFew) {
    if (std::find(list_.begin(), list_.end(), item) != list_.end()) return;
  } else {
    if (list_.size() == kFew)
      for (const Item& i : list_) many_.insert(key(i));
    if (!many_.insert(key(item)).second) return;
    if (list_.size() == kMaxItems)
      fail(ErrorCode::kUnsupported, "the grammar is too ambiguous: its rules can be at more than {} places at once",
           kMaxItems);
  }
  list_.push_back(item);
}

// Rules that may end here return to their callers, which may end as well.
bool Stepper::add_returns(const Stacks& stacks, std::span<const Item> at) {
  items_.clear();
  for (const Item& item : at) items_.add(item);
  bool ends = false;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const Item item = items_[i];
    if (!automaton_.final(item.state)) continue;
    ends |= item.node == Stacks::kOutermost;
    for (const Item& caller : stacks.callers(item.node)) items_.add(caller);
  }
  return ends;
}

bool Stepper::can_end(const Stacks& stacks, std::span<const Item> at) { return add_returns(stacks, at); }

void Stepper::call(std::uint32_t rule, const Item& caller) {
  if (called_[rule] == kNotCalled) {
    called_[rule] = static_cast<std::uint32_t>(count_);
    if (count_ == calls_.size()) calls_.emplace_back();
    calls_[count_].rule = rule;
    calls_[count_].callers.clear();
    ++count_;
  }
  calls_[called_[rule]].callers.add(caller);
}

// A caller that has nothing left to do but to end is replaced by its own callers, so that rules that call themselves at
// their end need no deeper stack each time. Callers come first: without left recursion, those of one place have an order.
void Stepper::add_nodes(Stacks& stacks) {
  const std::size_t base = stacks.size();
  std::vector<std::uint32_t> order(count_);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return automaton_.left_rank(calls_[a].rule) < automaton_.left_rank(calls_[b].rule);
  });
  for (const std::uint32_t n : order) {
    ItemSet flat;
    for (const Item& caller : calls_[n].callers.items()) {
      if (!automaton_.only_ends(caller.state) || caller.node == Stacks::kOutermost)
        flat.add(caller);
      else if (caller.node < base)
        for (const Item& c : stacks.callers(caller.node)) flat.add(c);
      else
        for (const Item& c : calls_[caller.node - base].callers.items()) flat.add(c);
    }
    calls_[n].callers = std::move(flat);
  }
  for (std::size_t n = 0; n < count_; ++n) stacks.add(calls_[n].callers.items());
}

bool Stepper::close(Stacks& stacks, std::span<const Item> at, std::vector<Item>& open) {
  const bool ends = add_returns(stacks, at);
  open.clear();
  count_ = 0;
  for (const Item& item : items_.items()) {
    if (!automaton_.edges(item.state).empty()) open.push_back(item);
    for (const CallEdge& c : automaton_.calls(item.state)) call(c.rule, {c.to, item.node});
  }
  if (count_ == 0) return ends;
  // A called rule does not return before a byte: ways around it are in the automaton.
  for (std::size_t n = 0; n < count_; ++n) {
    const Item item{automaton_.start(calls_[n].rule), static_cast<std::uint32_t>(stacks.size() + n)};
    if (!automaton_.edges(item.state).empty()) open.push_back(item);
    for (const CallEdge& c : automaton_.calls(item.state)) call(c.rule, {c.to, item.node});
  }
  add_nodes(stacks);
  for (std::size_t n = 0; n < count_; ++n) called_[calls_[n].rule] = kNotCalled;
  if (open.size() > kMaxItems) fail(ErrorCode::kUnsupported, "the grammar is too ambiguous");
  return ends;
}

void Stepper::advance(std::span<const Item> open, std::uint8_t byte, std::vector<Item>& to) {
  to.clear();
  const bool unique = open.size() == 1 && automaton_.deterministic(open[0].state);
  for (const Item& item : open)
    for (const ByteEdge& e : automaton_.edges(item.state)) {
      if (e.first > byte) break;
      if (byte <= e.last) to.push_back({e.to, item.node});
    }
  if (unique || to.size() < 2) return;
  std::sort(to.begin(), to.end(),
            [](const Item& a, const Item& b) { return a.node != b.node ? a.node < b.node : a.state < b.state; });
  to.erase(std::unique(to.begin(), to.end()), to.end());
}

}  // namespace dsmoe::grammar
