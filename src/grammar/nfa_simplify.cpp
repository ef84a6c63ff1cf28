#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/fail.h"
#include "grammar/nfa.h"

namespace dsmoe::grammar {

namespace {

using StateSet = std::vector<std::uint32_t>;  // ascending

struct StateSetHash {
  std::size_t operator()(const StateSet& set) const {
    std::uint64_t h = 0x9E3779B97F4A7C15ull;
    for (const std::uint32_t s : set) h = (h ^ s) * 0x100000001B3ull + (h >> 29);
    return static_cast<std::size_t>(h);
  }
};

class Simplifier {
 public:
  Simplifier(const Nfa& nfa, NfaBudget& budget) : nfa_(nfa), budget_(budget), seen_(nfa.states.size()) {}

  // Sets of states become states. Empty when there are more of them than `most`, or large ones: some grammars have
  // exponentially many.
  std::optional<Nfa> determinized(std::size_t most);
  Nfa without_empty_steps();

 private:
  // Adds what is reached by empty steps, leaves out states that have nothing else, and sorts.
  StateSet closed(StateSet set);
  std::uint32_t number_of(StateSet set);
  void add_bytes(const StateSet& set, Nfa::State& out);
  void add_calls(const StateSet& set, Nfa::State& out);

  const Nfa& nfa_;
  NfaBudget& budget_;
  std::vector<std::uint32_t> seen_;
  std::uint32_t round_ = 0;
  std::size_t work_ = 0;  // states and edges looked at
  std::unordered_map<StateSet, std::uint32_t, StateSetHash> numbers_;
  std::vector<const StateSet*> sets_;
};

StateSet Simplifier::closed(StateSet set) {
  ++round_;
  StateSet out;
  for (const std::uint32_t s : set) seen_[s] = round_;
  while (!set.empty()) {
    const std::uint32_t s = set.back();
    set.pop_back();
    const Nfa::State& state = nfa_.states[s];
    if (state.final || !state.edges.empty() || !state.calls.empty()) out.push_back(s);
    for (const std::uint32_t to : state.empty)
      if (seen_[to] != round_) seen_[to] = round_, set.push_back(to);
    work_ += 1 + state.empty.size();
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::uint32_t Simplifier::number_of(StateSet set) {
  const auto [found, is_new] = numbers_.try_emplace(closed(std::move(set)), static_cast<std::uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(&found->first);
  return found->second;
}

void Simplifier::add_bytes(const StateSet& set, Nfa::State& out) {
  std::vector<ByteEdge> edges;
  for (const std::uint32_t s : set) edges.insert(edges.end(), nfa_.states[s].edges.begin(), nfa_.states[s].edges.end());
  if (edges.empty()) return;
  std::array<bool, 257> cut{};  // where a range begins
  for (const ByteEdge& e : edges) cut[e.first] = cut[e.last + 1] = true;
  std::sort(edges.begin(), edges.end(), [](const ByteEdge& a, const ByteEdge& b) { return a.first < b.first; });
  std::vector<ByteEdge> open;  // those that reach the range
  std::size_t next = 0;
  for (int first = 0; first < 256;) {
    int last = first;
    while (last < 255 && !cut[static_cast<std::size_t>(last) + 1]) ++last;
    std::erase_if(open, [&](const ByteEdge& e) { return e.last < first; });
    while (next < edges.size() && edges[next].first <= first) open.push_back(edges[next++]);
    work_ += open.size();
    if (!open.empty()) {
      StateSet to;
      for (const ByteEdge& e : open) to.push_back(e.to);
      std::sort(to.begin(), to.end());
      to.erase(std::unique(to.begin(), to.end()), to.end());
      const std::uint32_t number = number_of(std::move(to));
      if (!out.edges.empty() && out.edges.back().to == number && out.edges.back().last + 1 == first)
        out.edges.back().last = static_cast<std::uint8_t>(last);
      else
        out.edges.push_back({static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last), number});
    }
    first = last + 1;
  }
}

void Simplifier::add_calls(const StateSet& set, Nfa::State& out) {
  std::vector<CallEdge> calls;
  for (const std::uint32_t s : set) calls.insert(calls.end(), nfa_.states[s].calls.begin(), nfa_.states[s].calls.end());
  std::sort(calls.begin(), calls.end(), [](const CallEdge& a, const CallEdge& b) { return a.rule < b.rule; });
  for (std::size_t i = 0; i < calls.size();) {
    const std::uint32_t rule = calls[i].rule;
    StateSet to;
    for (; i < calls.size() && calls[i].rule == rule; ++i) to.push_back(calls[i].to);
    std::sort(to.begin(), to.end());
    to.erase(std::unique(to.begin(), to.end()), to.end());
    out.calls.push_back({rule, number_of(std::move(to))});
  }
}

std::optional<Nfa> Simplifier::determinized(std::size_t most) {
  // The other way still has its half when this one has come to nothing.
  const std::size_t most_work = (kMaxClosure - std::min(budget_.closure, kMaxClosure)) / 2;
  Nfa out;
  out.deterministic = true;
  number_of({nfa_.start});
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    if (sets_.size() > most || work_ > most_work) return budget_.add_closure(work_ / 2), std::nullopt;
    const StateSet& set = *sets_[i];
    Nfa::State state;
    for (const std::uint32_t s : set) state.final |= nfa_.states[s].final;
    add_bytes(set, state);
    add_calls(set, state);
    out.states.push_back(std::move(state));
  }
  budget_.add_closure(work_);
  return out;
}

// One state for each set that an edge leads to as a whole would be the deterministic way; here an edge is copied to every
// state from which empty steps lead to its beginning.
Nfa Simplifier::without_empty_steps() {
  Nfa out;
  std::vector<std::uint32_t> number(nfa_.states.size(), 0xFFFFFFFF), met;
  const auto number_of_one = [&](std::uint32_t s) {
    if (number[s] == 0xFFFFFFFF) number[s] = static_cast<std::uint32_t>(met.size()), met.push_back(s);
    return number[s];
  };
  number_of_one(nfa_.start);
  for (std::size_t i = 0; i < met.size(); ++i) {
    Nfa::State state;
    for (const std::uint32_t s : closed({met[i]})) {
      state.final |= nfa_.states[s].final;
      work_ += nfa_.states[s].edges.size() + nfa_.states[s].calls.size();
      for (ByteEdge e : nfa_.states[s].edges) e.to = number_of_one(e.to), state.edges.push_back(e);
      for (CallEdge c : nfa_.states[s].calls) c.to = number_of_one(c.to), state.calls.push_back(c);
    }
    std::sort(state.edges.begin(), state.edges.end(), [](const ByteEdge& a, const ByteEdge& b) {
      return std::tie(a.first, a.last, a.to) < std::tie(b.first, b.last, b.to);
    });
    state.edges.erase(std::unique(state.edges.begin(), state.edges.end()), state.edges.end());
    out.states.push_back(std::move(state));
    budget_.add_closure(std::exchange(work_, 0));
  }
  return out;
}

// Keeps the states from which the rule can end, and the start. Every call can return: those of rules without an end are not
// in the automaton.
Nfa pruned(Nfa nfa) {
  std::vector<std::vector<std::uint32_t>> back(nfa.states.size());
  std::vector<std::uint32_t> work;
  std::vector<char> lives(nfa.states.size());
  for (std::uint32_t s = 0; s < nfa.states.size(); ++s) {
    for (const ByteEdge& e : nfa.states[s].edges) back[e.to].push_back(s);
    for (const CallEdge& c : nfa.states[s].calls) back[c.to].push_back(s);
    if (nfa.states[s].final) lives[s] = 1, work.push_back(s);
  }
  while (!work.empty()) {
    const std::uint32_t s = work.back();
    work.pop_back();
    for (const std::uint32_t from : back[s])
      if (!lives[from]) lives[from] = 1, work.push_back(from);
  }
  invariant(lives[nfa.start], "a rule without an end is in the automaton");
  std::vector<std::uint32_t> number(nfa.states.size());
  std::uint32_t count = 0;
  for (std::uint32_t s = 0; s < nfa.states.size(); ++s)
    if (lives[s]) number[s] = count++;
  Nfa out;
  out.deterministic = nfa.deterministic;
  for (std::uint32_t s = 0; s < nfa.states.size(); ++s) {
    if (!lives[s]) continue;
    Nfa::State& state = nfa.states[s];
    std::erase_if(state.edges, [&](const ByteEdge& e) { return !lives[e.to]; });
    std::erase_if(state.calls, [&](const CallEdge& c) { return !lives[c.to]; });
    for (ByteEdge& e : state.edges) e.to = number[e.to];
    for (CallEdge& c : state.calls) c.to = number[c.to];
    out.states.push_back(std::move(state));
  }
  return out;
}

}  // namespace

Nfa simplified(const Nfa& nfa, NfaBudget& budget) {
  // Usual rules get smaller by this; those that grow more are left as they are, for the matcher can run both.
  const std::size_t most = 2 * nfa.states.size() + 100;
  if (std::optional<Nfa> one = Simplifier(nfa, budget).determinized(most)) return pruned(std::move(*one));
  return pruned(Simplifier(nfa, budget).without_empty_steps());
}

}  // namespace dsmoe::grammar
