// The automaton of one rule while it is made: with steps that match nothing, then without, deterministic where that does
// not make it much larger, and without states from which there is no end.
#pragma once

#include <map>
#include <optional>
#include <tuple>

#include "grammar/automaton.h"

namespace dsmoe::grammar {

// What all automata of one grammar may have together. A string of up to 10,000 characters has about 80,000 states.
inline constexpr std::size_t kMaxNfaStates = 1 << 19;
inline constexpr std::size_t kMaxClosure = 1 << 23;  // states in the sets that are made of them

struct Nfa {
  struct State {
    std::vector<ByteEdge> edges;
    std::vector<CallEdge> calls;
    std::vector<std::uint32_t> empty;  // steps that match nothing
    bool final = false;
  };
  std::vector<State> states;
  std::uint32_t start = 0;
  bool deterministic = false;
};

// Counts what is made for one grammar, and refuses it when that is too much.
struct NfaBudget {
  std::size_t states = 0, closure = 0;
  void add_states(std::size_t count);
  void add_closure(std::size_t count);
};

class NfaBuilder {
 public:
  // `inlined` by rule: its body takes the place of its calls. `nullable` and `productive` by expression.
  struct Facts {
    const std::vector<char>&inlined, &nullable, &productive;
  };
  NfaBuilder(const Grammar& grammar, const Facts& facts, NfaBudget& budget)
      : grammar_(grammar), facts_(facts), budget_(budget) {}

  Nfa build(std::uint32_t rule);  // calls name the grammar's rules

 private:
  std::uint32_t add_state();
  void add(Grammar::Ref ref, std::uint32_t from, std::uint32_t to);
  void add_text(const std::string& text, std::uint32_t from, std::uint32_t to);
  void add_chars(const CharSet& chars, std::uint32_t from, std::uint32_t to);
  void add_sequence(const std::vector<Grammar::Ref>& parts, std::uint32_t from, std::uint32_t to);
  void add_repeat(const Expr& expr, std::uint32_t from, std::uint32_t to);
  void add_call(std::uint32_t rule, std::uint32_t from, std::uint32_t to);

  const Grammar& grammar_;
  Facts facts_;
  NfaBudget& budget_;
  Nfa nfa_;
};

// The same texts, without empty steps and without states that lead nowhere. The start is state 0.
Nfa simplified(const Nfa& nfa, NfaBudget& budget);

}  // namespace dsmoe::grammar
