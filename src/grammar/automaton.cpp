#include "grammar/automaton.h"

#include <algorithm>
#include <numeric>

#include "core/fail.h"
#include "grammar/analysis.h"
#include "grammar/nfa.h"

namespace dsmoe::grammar {

namespace {

// A rule of at most so many expressions and characters, those of the rules that it calls counted too, takes the place of
// its calls: a call costs the matcher more than a step.
constexpr std::size_t kInlineSize = 24;

std::vector<char> inlined_rules(const Grammar& g, const Analysis& analysis) {
  std::vector<std::size_t> sizes(g.rules().size(), kInlineSize + 1);
  std::vector<char> inlined(g.rules().size());
  const auto size_of = [&](const auto& self, Grammar::Ref ref) -> std::size_t {
    const Expr& x = g.expr(ref);
    const std::size_t copies = x.kind != ExprKind::kRepeat ? 1 : x.max == kUnbounded ? x.min + 1u : x.max;
    std::size_t size = 1 + x.text.size() + x.chars.ranges().size();
    if (x.kind == ExprKind::kRule) size = inlined[x.rule] ? sizes[x.rule] : 1;
    for (const Grammar::Ref part : x.parts)
      if (size <= kInlineSize) size += self(self, part) * copies;
    return size;
  };
  for (const std::uint32_t rule : analysis.order) {
    if (analysis.recursive[rule]) continue;
    sizes[rule] = size_of(size_of, g.rules()[rule].body);
    inlined[rule] = sizes[rule] <= kInlineSize;
  }
  return inlined;
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0xFF51AFD7ED558CCDull;
  return hash ^ hash >> 32;
}

}  // namespace

class AutomatonBuilder {
 public:
  AutomatonBuilder(const Grammar& grammar, Automaton& out)
      : grammar_(grammar),
        out_(out),
        analysis_(analyse(grammar)),
        inlined_(inlined_rules(grammar, analysis_)),
        number_(grammar.rules().size(), kNone) {}

  void build() {
    number_of(grammar_.root);
    NfaBudget budget;
    for (std::size_t i = 0; i < met_.size(); ++i) {
      const NfaBuilder::Facts facts{inlined_, analysis_.nullable, analysis_.productive};
      add(simplified(NfaBuilder(grammar_, facts, budget).build(met_[i]), budget));
    }
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  std::uint32_t number_of(std::uint32_t rule) {
    if (number_[rule] == kNone) {
      number_[rule] = static_cast<std::uint32_t>(met_.size());
      met_.push_back(rule);
      out_.left_ranks_.push_back(analysis_.left_rank[rule]);
    }
    return number_[rule];
  }

  void add(const Nfa& nfa) {
    const auto base = static_cast<std::uint32_t>(out_.states());
    const auto rule = static_cast<std::uint32_t>(out_.starts_.size());
    out_.starts_.push_back(base + nfa.start);
    for (const Nfa::State& s : nfa.states) {
      for (ByteEdge e : s.edges) e.to += base, out_.edges_.push_back(e);
      for (const CallEdge& c : s.calls) out_.calls_.push_back({number_of(c.rule), c.to + base});
      out_.first_edge_.push_back(static_cast<std::uint32_t>(out_.edges_.size()));
      out_.first_call_.push_back(static_cast<std::uint32_t>(out_.calls_.size()));
      out_.final_.push_back(s.final);
      out_.deterministic_.push_back(nfa.deterministic);
      out_.plain_.push_back(nfa.deterministic && s.calls.empty());
      out_.rule_of_.push_back(rule);
    }
  }

  const Grammar& grammar_;
  Automaton& out_;
  Analysis analysis_;
  std::vector<char> inlined_;
  std::vector<std::uint32_t> number_, met_;
};

Automaton::Automaton(const Grammar& grammar) { AutomatonBuilder(grammar, *this).build(); }

// A state's hash covers what can be seen within so many steps of it; every step, a call too, is a byte or more. Two states
// whose 64 bits are equal by chance would be taken for one: with a million states that is less likely than 1 in 10 million.
std::vector<std::uint32_t> Automaton::classes(std::size_t bytes) const {
  std::vector<std::uint64_t> hash(states()), next(states()), sorted;
  for (std::size_t s = 0; s < states(); ++s) hash[s] = static_cast<std::uint64_t>(final_[s]) + 1;
  std::size_t count = 0;
  constexpr std::size_t kRoundsBetweenLooks = 8;
  for (std::size_t round = 0; round <= bytes; ++round) {
    for (std::uint32_t s = 0; s < states(); ++s) {
      std::uint64_t h = mixed(0x2545F4914F6CDD1Dull, hash[s]);
      for (const ByteEdge& e : edges(s)) h = mixed(mixed(h, e.first | e.last << 8 | 1 << 16), hash[e.to]);
      for (const CallEdge& c : calls(s)) h = mixed(mixed(h, c.rule | std::uint64_t{1} << 40), hash[c.to]);
      next[s] = h;
    }
    hash.swap(next);
    if (round % kRoundsBetweenLooks != 0 && round != bytes) continue;
    sorted = hash;
    std::sort(sorted.begin(), sorted.end());
    const auto distinct = static_cast<std::size_t>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
    sorted.resize(distinct);
    if (distinct == count) break;  // finer classes would come of a finer round only
    count = distinct;
  }
  std::vector<std::uint32_t> out(states());
  for (std::size_t s = 0; s < states(); ++s)
    out[s] = static_cast<std::uint32_t>(std::lower_bound(sorted.begin(), sorted.end(), hash[s]) - sorted.begin());
  return out;
}

}  // namespace dsmoe::grammar
