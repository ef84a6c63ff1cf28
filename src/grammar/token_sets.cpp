#include "grammar/token_sets.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <set>

#include "grammar/token_walk.h"

namespace dsmoe::grammar {

TokenSet::TokenSet(std::vector<std::uint64_t> bits) {
  std::size_t count = 0;
  for (const std::uint64_t word : bits) count += static_cast<std::size_t>(std::popcount(word));
  if (count * sizeof(ids_[0]) >= bits.size() * sizeof(bits[0])) {
    bits_ = std::move(bits);
    return;
  }
  ids_.reserve(count);
  for (std::size_t i = 0; i < bits.size(); ++i)
    for (std::uint64_t word = bits[i]; word != 0; word &= word - 1)
      ids_.push_back(static_cast<std::uint32_t>(64 * i + static_cast<std::size_t>(std::countr_zero(word))));
}

void TokenSet::add_to(std::span<std::uint64_t> mask) const {
  for (const std::uint32_t id : ids_) mask[id / 64] |= std::uint64_t{1} << (id % 64);
  for (std::size_t i = 0; i < bits_.size(); ++i) mask[i] |= bits_[i];
}

std::size_t TokenSets::NodesHash::operator()(const std::vector<std::uint32_t>& nodes) const {
  std::uint64_t h = nodes.size();
  for (const std::uint32_t n : nodes) h = (h ^ n) * 0xFF51AFD7ED558CCDull + (h >> 31);
  return static_cast<std::size_t>(h ^ h >> 32);
}

TokenSets::TokenSets(const Automaton& automaton, const Vocabulary& vocabulary)
    : automaton_(automaton), vocabulary_(vocabulary), classes_(automaton.classes(vocabulary.longest())) {
  nodes_.push_back(&numbers_.try_emplace({0}, kRoot).first->first);
  nodes_.push_back(&numbers_.try_emplace({}, kNone).first->first);
}

TokenSets::Entry TokenSets::make(std::uint32_t state, const std::vector<std::uint32_t>& nodes,
                                 std::vector<std::uint32_t>& exits) const {
  TokenWalk walk(automaton_, vocabulary_, state);
  for (const std::uint32_t node : nodes) walk.below(node);
  steps_ += walk.steps;
  std::sort(walk.exits.begin(), walk.exits.end());
  walk.exits.erase(std::unique(walk.exits.begin(), walk.exits.end()), walk.exits.end());
  exits = std::move(walk.exits);
  return {TokenSet(std::move(walk.tokens)), kNone};
}

const TokenSets::Entry& TokenSets::get(std::uint32_t state, Exits from) const {
  const std::uint64_t key = static_cast<std::uint64_t>(classes_[state]) << 32 | from;
  const std::vector<std::uint32_t>* nodes = nullptr;
  {
    const std::shared_lock lock(mutex_);
    if (const auto found = entries_.find(key); found != entries_.end()) return *found->second;
    nodes = nodes_[from];
  }
  std::vector<std::uint32_t> exits;
  Entry entry = make(state, *nodes, exits);
  // Another thread may have made the same; then its entry stays.
  const std::unique_lock lock(mutex_);
  const auto [number, is_new] = numbers_.try_emplace(std::move(exits), static_cast<Exits>(nodes_.size()));
  if (is_new) nodes_.push_back(&number->first);
  entry.exits = number->second;
  return *entries_.try_emplace(key, std::make_unique<const Entry>(std::move(entry))).first->second;
}

namespace {

// The states in which the callers of each rule go on, as Stepper::add_nodes() leaves them: a caller that only ends is
// replaced by its own callers.
std::vector<std::vector<std::uint32_t>> states_behind_calls(const Automaton& automaton) {
  std::vector<std::set<std::uint32_t>> behind(automaton.rules());
  std::vector<std::vector<std::uint32_t>> passed_on(automaton.rules());  // by caller: rules called where it only ends
  std::vector<std::uint32_t> work;
  for (std::uint32_t s = 0; s < automaton.states(); ++s)
    for (const CallEdge& c : automaton.calls(s)) {
      if (!automaton.only_ends(c.to))
        behind[c.rule].insert(c.to);
      else
        passed_on[automaton.rule_of(s)].push_back(c.rule);
    }
  for (std::uint32_t r = 0; r < automaton.rules(); ++r) work.push_back(r);
  while (!work.empty()) {
    const std::uint32_t rule = work.back();
    work.pop_back();
    for (const std::uint32_t called : passed_on[rule]) {
      const std::size_t before = behind[called].size();
      behind[called].insert(behind[rule].begin(), behind[rule].end());
      if (behind[called].size() != before) work.push_back(called);
    }
  }
  std::vector<std::vector<std::uint32_t>> out(automaton.rules());
  for (std::size_t r = 0; r < out.size(); ++r) out[r].assign(behind[r].begin(), behind[r].end());
  return out;
}

}  // namespace

void TokenSets::prepare(std::size_t most) const {
  const std::vector<std::vector<std::uint32_t>> behind = states_behind_calls(automaton_);
  std::set<std::tuple<std::uint32_t, std::uint32_t, Exits>> seen;  // class, rule, exits
  std::vector<std::pair<std::uint32_t, Exits>> work;
  const auto add = [&](std::uint32_t state, Exits exits) {
    if (seen.insert({classes_[state], automaton_.rule_of(state), exits}).second) work.push_back({state, exits});
  };
  // From the start on, in the order of the text: if they are too many, the first ones are there.
  for (std::uint32_t s = 0; s < automaton_.states(); ++s) add(s, kRoot);
  constexpr std::uint64_t kSteps = 30'000'000;
  for (std::size_t i = 0; i < work.size() && entries() < most && steps_ < kSteps; ++i) {
    const auto [state, from] = work[i];
    const Exits exits = get(state, from).exits;
    if (exits != kNone)
      for (const std::uint32_t next : behind[automaton_.rule_of(state)]) add(next, exits);
  }
}

std::size_t TokenSets::entries() const {
  const std::shared_lock lock(mutex_);
  return entries_.size();
}

std::size_t TokenSets::bytes() const {
  const std::shared_lock lock(mutex_);
  std::size_t sum = 0;
  for (const auto& entry : entries_) sum += sizeof(Entry) + entry.second->tokens.bytes();
  for (const std::vector<std::uint32_t>* nodes : nodes_) sum += nodes->size() * sizeof((*nodes)[0]);
  return sum;
}

}  // namespace dsmoe::grammar
