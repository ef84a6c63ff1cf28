#include "grammar/nfa.h"

#include "core/fail.h"

namespace dsmoe::grammar {

void NfaBudget::add_states(std::size_t count) {
  states += count;
  if (states > kMaxNfaStates)
    fail(ErrorCode::kUnsupported, "the grammar is too large: its repetitions make more than {} states", kMaxNfaStates);
}

void NfaBudget::add_closure(std::size_t count) {
  closure += count;
  if (closure > kMaxClosure)
    fail(ErrorCode::kUnsupported, "the grammar is too ambiguous: too many of its parts can be at the same place");
}

std::uint32_t NfaBuilder::add_state() {
  budget_.add_states(1);
  nfa_.states.emplace_back();
  return static_cast<std::uint32_t>(nfa_.states.size() - 1);
}

Nfa NfaBuilder::build(std::uint32_t rule) {
  nfa_ = {};
  nfa_.start = add_state();
  const std::uint32_t end = add_state();
  nfa_.states[end].final = true;
  add(grammar_.rules()[rule].body, nfa_.start, end);
  return std::move(nfa_);
}

void NfaBuilder::add(Grammar::Ref ref, std::uint32_t from, std::uint32_t to) {
  if (!facts_.productive[ref]) return;
  const Expr& x = grammar_.expr(ref);
  switch (x.kind) {
    case ExprKind::kText: return add_text(x.text, from, to);
    case ExprKind::kChars: return add_chars(x.chars, from, to);
    case ExprKind::kSequence: return add_sequence(x.parts, from, to);
    case ExprKind::kChoice:
      for (const Grammar::Ref part : x.parts) add(part, from, to);
      return;
    case ExprKind::kRepeat: return add_repeat(x, from, to);
    case ExprKind::kRule: return add_call(x.rule, from, to);
  }
}

void NfaBuilder::add_text(const std::string& text, std::uint32_t from, std::uint32_t to) {
  if (text.empty()) nfa_.states[from].empty.push_back(to);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const std::uint32_t next = i + 1 == text.size() ? to : add_state();
    nfa_.states[from].edges.push_back({byte, byte, next});
    from = next;
  }
}

// Sequences that end alike share the states of their ends.
void NfaBuilder::add_chars(const CharSet& chars, std::uint32_t from, std::uint32_t to) {
  std::map<std::tuple<std::uint8_t, std::uint8_t, std::uint32_t>, std::uint32_t> ends;
  for (const ByteSequence& s : utf8_sequences(chars)) {
    std::uint32_t next = to;
    for (int i = s.length - 1; i > 0; --i) {
      const auto [found, is_new] = ends.try_emplace({s.first[i], s.last[i], next}, 0);
      if (is_new) {
        found->second = add_state();
        nfa_.states[found->second].edges.push_back({s.first[i], s.last[i], next});
      }
      next = found->second;
    }
    nfa_.states[from].edges.push_back({s.first[0], s.last[0], next});
  }
}

void NfaBuilder::add_sequence(const std::vector<Grammar::Ref>& parts, std::uint32_t from, std::uint32_t to) {
  if (parts.empty()) nfa_.states[from].empty.push_back(to);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::uint32_t next = i + 1 == parts.size() ? to : add_state();
    add(parts[i], from, next);
    from = next;
  }
}

// Choices and repetitions write their parts between states that others may use as well. No edge may lead back into `from`
// or out of `to` by what is added here, or texts of the neighbours would mix: a loop gets a state of its own.
void NfaBuilder::add_repeat(const Expr& x, std::uint32_t from, std::uint32_t to) {
  const Grammar::Ref part = x.parts[0];
  for (std::uint32_t i = 0; i < x.min; ++i) {
    const std::uint32_t next = add_state();
    add(part, from, next);
    from = next;
  }
  if (x.max == kUnbounded) {
    const std::uint32_t loop = add_state(), again = add_state();
    nfa_.states[from].empty.push_back(loop);
    if (facts_.productive[part]) add(part, loop, again);
    nfa_.states[again].empty.push_back(loop);
    nfa_.states[loop].empty.push_back(to);
    return;
  }
  nfa_.states[from].empty.push_back(to);
  if (!facts_.productive[part]) return;
  for (std::uint32_t i = x.min; i < x.max; ++i) {
    const std::uint32_t next = add_state();
    add(part, from, next);
    nfa_.states[next].empty.push_back(to);
    from = next;
  }
}

void NfaBuilder::add_call(std::uint32_t rule, std::uint32_t from, std::uint32_t to) {
  const Grammar::Ref body = grammar_.rules()[rule].body;
  if (facts_.inlined[rule]) return add(body, from, to);
  nfa_.states[from].calls.push_back({rule, to});
  if (facts_.nullable[body]) nfa_.states[from].empty.push_back(to);
}

}  // namespace dsmoe::grammar
