#include "grammar/grammar.h"

#include <algorithm>

#include "core/fail.h"

namespace dsmoe::grammar {

Grammar::Ref Grammar::add(Expr expr) {
  for (const Ref part : expr.parts) expr.nesting = std::max(expr.nesting, exprs_[part].nesting + 1);
  if (exprs_.size() >= kMaxExpressions)
    fail(ErrorCode::kUnsupported, "the grammar is too large: more than {} expressions", kMaxExpressions);
  if (expr.nesting > kMaxNesting)
    fail(ErrorCode::kUnsupported, "the grammar is nested too deeply: more than {} levels", kMaxNesting);
  exprs_.push_back(std::move(expr));
  return static_cast<Ref>(exprs_.size() - 1);
}

Grammar::Ref Grammar::text(std::string bytes) { return add({.kind = ExprKind::kText, .text = std::move(bytes)}); }

Grammar::Ref Grammar::chars(CharSet set) { return add({.kind = ExprKind::kChars, .chars = std::move(set)}); }

Grammar::Ref Grammar::sequence(std::vector<Ref> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = ExprKind::kSequence, .parts = std::move(parts)});
}

Grammar::Ref Grammar::choice(std::vector<Ref> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = ExprKind::kChoice, .parts = std::move(parts)});
}

Grammar::Ref Grammar::repeat(Ref part, std::uint32_t min, std::uint32_t max) {
  invariant(min <= max, "a repetition whose minimum is above its maximum");
  return add({.kind = ExprKind::kRepeat, .min = min, .max = max, .parts = {part}});
}

Grammar::Ref Grammar::call(std::uint32_t rule) { return add({.kind = ExprKind::kRule, .rule = rule}); }

std::uint32_t Grammar::add_rule(std::string name) {
  if (rules_.size() >= kMaxRules) fail(ErrorCode::kUnsupported, "the grammar is too large: more than {} rules", kMaxRules);
  rules_.push_back({std::move(name)});
  return static_cast<std::uint32_t>(rules_.size() - 1);
}

void Grammar::define(std::uint32_t rule, Ref body) {
  rules_[rule].body = body;
  rules_[rule].defined = true;
}

std::uint32_t Grammar::add_rule(std::string name, Ref body) {
  const std::uint32_t rule = add_rule(std::move(name));
  define(rule, body);
  return rule;
}

std::uint32_t Grammar::add_grammar(const Grammar& other) {
  const auto first_rule = static_cast<std::uint32_t>(rules_.size());
  const auto first_expr = static_cast<Ref>(exprs_.size());
  for (Expr expr : other.exprs_) {
    for (Ref& part : expr.parts) part += first_expr;
    if (expr.kind == ExprKind::kRule) expr.rule += first_rule;
    add(std::move(expr));
  }
  for (const Rule& rule : other.rules_) {
    const std::uint32_t here = add_rule(rule.name);
    if (rule.defined) define(here, rule.body + first_expr);
  }
  return first_rule + other.root;
}

}  // namespace dsmoe::grammar
