// A context-free grammar over characters, as the readers of GBNF and of JSON schemas make it: named rules, each an
// expression. It is data, not checked yet; automaton.h makes of it what a matcher runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_set.h"

namespace dsmoe::grammar {

inline constexpr std::uint32_t kUnbounded = 0xFFFFFFFF;

// What a grammar may have; a larger one is refused by an Error. The largest schemas in use have some thousand rules.
inline constexpr std::size_t kMaxExpressions = 1 << 18;
inline constexpr std::size_t kMaxRules = 1 << 15;
inline constexpr std::uint32_t kMaxNesting = 500;  // of expressions: walks over them recurse

enum class ExprKind : std::uint8_t { kText, kChars, kSequence, kChoice, kRepeat, kRule };

struct Expr {
  ExprKind kind = ExprKind::kText;
  std::uint32_t nesting = 1;
  std::uint32_t min = 0, max = 0;    // kRepeat
  std::uint32_t rule = 0;            // kRule
  std::vector<std::uint32_t> parts;  // kSequence, kChoice; kRepeat has one
  std::string text;                  // kText: bytes, may be empty
  CharSet chars;                     // kChars
};

struct Rule {
  std::string name;
  std::uint32_t body = 0;
  bool defined = false;
};

class Grammar {
 public:
  using Ref = std::uint32_t;  // an expression; may be part of several others

  Ref text(std::string bytes);
  Ref empty() { return text({}); }
  Ref chars(CharSet set);
  Ref sequence(std::vector<Ref> parts);
  Ref choice(std::vector<Ref> parts);  // of none: matches nothing
  Ref repeat(Ref part, std::uint32_t min, std::uint32_t max);
  Ref optional(Ref part) { return repeat(part, 0, 1); }
  Ref call(std::uint32_t rule);

  std::uint32_t add_rule(std::string name);
  void define(std::uint32_t rule, Ref body);
  std::uint32_t add_rule(std::string name, Ref body);
  std::uint32_t add_grammar(const Grammar& other);  // all of its rules; the root's number here

  const Expr& expr(Ref ref) const { return exprs_[ref]; }
  std::size_t size() const { return exprs_.size(); }
  const std::vector<Rule>& rules() const { return rules_; }

  std::uint32_t root = 0;  // the rule that a whole text matches

 private:
  Ref add(Expr expr);

  std::vector<Expr> exprs_;
  std::vector<Rule> rules_;
};

}  // namespace dsmoe::grammar
