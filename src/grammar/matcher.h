// Which tokens keep a text within a grammar. A CompiledGrammar serves any number of texts at once; a Matcher is one text,
// and a copy of it is a place to come back to.
//
//   auto vocabulary = std::make_shared<Vocabulary>(tokens, end_tokens);
//   auto grammar = std::make_shared<CompiledGrammar>(parse_gbnf(text), vocabulary);
//   Matcher matcher(grammar);
//   matcher.mask(bits);  // one bit per token; choose one of them
//   matcher.accept(id);
#pragma once

#include <memory>

#include "grammar/stacks.h"
#include "grammar/token_sets.h"

namespace dsmoe::grammar {

class CompiledGrammar {
 public:
  // `prepared`: token sets that are made at once; the others are made when they are needed first, at about a millisecond
  // each. Throws an Error for grammars that are wrong or too large.
  static constexpr std::size_t kPrepared = 1000;
  CompiledGrammar(const Grammar& grammar, std::shared_ptr<const Vocabulary> vocabulary, std::size_t prepared = kPrepared);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const Automaton& automaton() const { return automaton_; }
  const TokenSets& token_sets() const { return sets_; }

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  Automaton automaton_;
  TokenSets sets_;
};

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const CompiledGrammar> grammar);

  const CompiledGrammar& grammar() const { return *grammar_; }

  // mask [vocabulary().words()]: bit id % 64 of word id / 64 is set when the token may come next.
  void mask(std::span<std::uint64_t> mask) const;
  // Whether a mask has no tokens but end tokens.
  bool nothing_but_end(std::span<const std::uint64_t> mask) const;
  // False, and nothing changes, when the token may not come next. After an end token nothing may.
  bool accept(std::int32_t id);
  // The same for bytes, in any pieces.
  bool accept(std::string_view bytes);
  bool can_end() const;                  // the text so far is whole
  bool ended() const { return ended_; }  // an end token was accepted

 private:
  std::shared_ptr<const CompiledGrammar> grammar_;
  std::vector<Item> at_;
  Stacks stacks_;
  std::size_t kept_ = 1;  // nodes when unused ones were last dropped
  bool ended_ = false;
};

}  // namespace dsmoe::grammar
