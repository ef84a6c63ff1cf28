// A template as a tree.
//
//   template   text, {{ expression }}, {# comment #} and
//   statement  {% if e %} ... {% elif e %} ... {% else %} ... {% endif %}
//              {% for name[, name] in e [if e] %} ... [{% else %} ...] {% endfor %}, {% break %}, {% continue %}
//              {% set name = e %}, {% set name.name = e %}
//              {% macro name(name, name = e) %} ... {% endmacro %}, called as a function further down
//   expression or, and, not, == != < > <= >= in, not in, + - ~ * // %, unary - +, e if e else e, (e), (e, e), [e, e],
//              {e: e}, strings, integers, true, false, none, e.name, e[e], e[e:e:e], e.method(e), name(e), e|filter,
//              e is [not] test
//   functions, filters, methods and tests: see jinja_functions.cpp
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja_lexer.h"
#include "tokenizer/jinja_value.h"

namespace dsmoe::jinja {

enum class ExprKind : std::uint8_t {
  kConstant,     // value
  kName,         // name
  kList,         // children
  kDict,         // children: key, value, key, value, ...
  kMember,       // children[0] . name
  kItem,         // children[0] [ children[1] ]
  kSlice,        // children[0] [ children[1] : children[2] : children[3] ], any of the three may be null
  kFunction,     // name ( arguments )
  kMethod,       // children[0] . name ( arguments )
  kFilter,       // children[0] | name ( arguments )
  kTest,         // children[0] is name
  kNot,          // not children[0]
  kNegate,       // - children[0]
  kAnd,          // children[0] and children[1]
  kOr,           // children[0] or children[1]
  kOperator,     // children[0] name children[1], for + - ~ * // %
  kComparison,   // children[0] names[0] children[1] names[1] children[2] ...
  kConditional,  // children[0] if children[1] else children[2], the last may be null
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  Position at;
  int depth = 1;  // of the tree; bounded, since it is walked recursively
  Value value;
  std::string name;
  std::vector<std::unique_ptr<Expr>> children;
  std::vector<std::string> names;  // of comparisons; of keyword arguments ("" for positional ones)
};
using ExprPtr = std::unique_ptr<Expr>;

enum class StatementKind : std::uint8_t { kText, kPrint, kIf, kFor, kSet, kBreak, kContinue, kMacro };

struct Statement;
using Block = std::vector<Statement>;

struct Branch {
  ExprPtr condition;  // null for else
  Block body;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  Position at;
  std::string text;                // kText
  std::vector<std::string> names;  // kFor: the loop's variables; kSet: the name, and the member if there is one;
                                   // kMacro: its name, then its parameters
  ExprPtr expression;              // kPrint, kSet; kFor: what is walked through
  ExprPtr condition;               // kFor: which items count, may be null
  std::vector<Branch> branches;    // kIf; kFor: the body, then perhaps the else branch; kMacro: the body
  std::vector<ExprPtr> defaults;   // kMacro: of its parameters, null where there is none
};

Block parse(std::string_view source);

// Whether the names are known, for errors before the first message is rendered.
bool is_function(std::string_view name);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_method(std::string_view name);

}  // namespace dsmoe::jinja
