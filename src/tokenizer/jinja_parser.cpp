#include "tokenizer/jinja_parser.h"

#include <algorithm>
#include <set>

#include "core/printable.h"

namespace dsmoe::jinja {

namespace {

// Far beyond any real template, and far from the end of a thread's stack.
constexpr int kMaxDepth = 100;

ExprPtr make(ExprKind kind, Position at, std::string name = {}) {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->at = at;
  e->name = std::move(name);
  return e;
}

void adopt(Expr& parent, ExprPtr child) {
  if (child) parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > kMaxDepth)
    fail_at(ErrorCode::kUnsupported, parent.at, "an expression nested more than {} deep is not supported", kMaxDepth);
  parent.children.push_back(std::move(child));
}

template <class... Children>
ExprPtr make_parent(ExprKind kind, Position at, std::string name, Children... children) {
  auto e = make(kind, at, std::move(name));
  (adopt(*e, std::move(children)), ...);
  return e;
}

ExprPtr constant(Position at, Value value) {
  auto e = make(ExprKind::kConstant, at);
  e->value = std::move(value);
  return e;
}

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Block run() {
    Block block = statements();
    if (peek().kind != TokenKind::kEnd)
      fail_at(ErrorCode::kFormat, peek().at, "'{}' without its beginning", tokens_[at_ + 1].text);
    return block;
  }

 private:
  // --- tokens
  const Token& peek() const { return tokens_[at_]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_operator(std::string_view text) const { return peek().kind == TokenKind::kOperator && peek().text == text; }
  bool is_word(std::string_view text) const { return peek().kind == TokenKind::kName && peek().text == text; }
  bool skip_operator(std::string_view text) { return is_operator(text) && (take(), true); }
  bool skip_word(std::string_view text) { return is_word(text) && (take(), true); }
  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) unexpected(fmt::format("'{}'", text));
  }
  std::string expect_name() {
    if (peek().kind != TokenKind::kName) unexpected("a name");
    return take().text;
  }
  void expect_tag_end() {
    if (peek().kind != TokenKind::kTagEnd) unexpected("%}");
    take();
  }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    constexpr const char* kKinds[] = {"text", "{{", "}}", "{%", "%}", "", "a string", "a number", "", "the end"};
    const Token& token = peek();
    const std::string found = token.kind == TokenKind::kName || token.kind == TokenKind::kOperator
                                  ? in_quotes(token.text)
                                  : kKinds[static_cast<std::size_t>(token.kind)];
    fail_at(ErrorCode::kFormat, token.at, "expected {}, found {}", wanted, found);
  }

  struct Nesting {
    explicit Nesting(Parser& parser) : depth(parser.depth_) {
      if (++depth > kMaxDepth)
        fail_at(ErrorCode::kUnsupported, parser.peek().at, "nesting more than {} deep is not supported", kMaxDepth);
    }
    ~Nesting() { --depth; }
    int& depth;
  };

  // --- statements
  // Up to the end, or to a tag that the caller has to understand ({% endif %} and the like).
  Block statements() {
    const Nesting nesting(*this);
    Block block;
    while (peek().kind != TokenKind::kEnd) {
      Statement s;
      s.at = peek().at;
      if (peek().kind == TokenKind::kText) {
        s.text = take().text;
      } else if (peek().kind == TokenKind::kPrint) {
        take();
        s.kind = StatementKind::kPrint;
        s.expression = expression();
        if (peek().kind != TokenKind::kPrintEnd) unexpected("}}");
        take();
      } else {
        const Token& name = tokens_[at_ + 1];
        if (name.kind == TokenKind::kName && is_closing(name.text)) return block;
        take();
        tag(s);
      }
      block.push_back(std::move(s));
    }
    return block;
  }

  static bool is_closing(std::string_view name) {
    return name == "elif" || name == "else" || name == "endif" || name == "endfor" || name == "endmacro";
  }

  void tag(Statement& s) {
    const std::string name = expect_name();
    if (name == "if") return if_tag(s);
    if (name == "for") return for_tag(s);
    if (name == "set") return set_tag(s);
    if (name == "macro") return macro_tag(s);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_at(ErrorCode::kFormat, s.at, "{} outside of a loop", name);
      s.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      return expect_tag_end();
    }
    fail_at(ErrorCode::kUnsupported, s.at, "the tag {} is not supported (only if, for, set, macro, break and continue are)",
            in_quotes(name));
  }

  // The name of the tag that ended a block.
  std::string closing(const Statement& opening, std::string_view what) {
    if (peek().kind == TokenKind::kEnd) fail_at(ErrorCode::kFormat, opening.at, "'{0}' without its 'end{0}'", what);
    take();
    return take().text;
  }

  void if_tag(Statement& s) {
    s.kind = StatementKind::kIf;
    std::string name = "elif";
    while (name != "endif") {
      Branch branch;
      if (name == "elif")
        branch.condition = expression(false);
      else if (name != "else" || !s.branches.back().condition)
        fail_at(ErrorCode::kFormat, peek().at, "{} does not belong here", in_quotes(name));
      expect_tag_end();
      branch.body = statements();
      // After an else, only endif may come.
      const bool last = !branch.condition;
      s.branches.push_back(std::move(branch));
      name = closing(s, "if");
      if (last && name != "endif") fail_at(ErrorCode::kFormat, peek().at, "{} after else", in_quotes(name));
    }
    expect_tag_end();
  }

  void for_tag(Statement& s) {
    s.kind = StatementKind::kFor;
    do s.names.push_back(expect_name());
    while (skip_operator(","));
    if (!skip_word("in")) unexpected("'in'");
    s.expression = expression(false);
    if (skip_word("if")) s.condition = expression();
    if (is_word("recursive")) fail_at(ErrorCode::kUnsupported, peek().at, "a recursive loop is not supported");
    expect_tag_end();
    ++loops_;
    s.branches.push_back({nullptr, statements()});
    --loops_;
    std::string name = closing(s, "for");
    if (name == "else") {
      expect_tag_end();
      s.branches.push_back({nullptr, statements()});
      name = closing(s, "for");
    }
    if (name != "endfor") fail_at(ErrorCode::kFormat, peek().at, "{} in a loop", in_quotes(name));
    expect_tag_end();
  }

  void set_tag(Statement& s) {
    s.kind = StatementKind::kSet;
    s.names.push_back(expect_name());
    if (skip_operator(".")) s.names.push_back(expect_name());
    if (is_operator(",")) fail_at(ErrorCode::kUnsupported, peek().at, "set with several names is not supported");
    if (peek().kind == TokenKind::kTagEnd || is_operator("|"))
      fail_at(ErrorCode::kUnsupported, s.at, "set without a value (a block) is not supported");
    expect_operator("=");
    s.expression = expression();
    expect_tag_end();
  }

  void macro_tag(Statement& s) {
    s.kind = StatementKind::kMacro;
    if (depth_ > 1 || loops_ > 0) fail_at(ErrorCode::kUnsupported, s.at, "a macro inside of another tag is not supported");
    s.names.push_back(expect_name());
    expect_operator("(");
    while (!skip_operator(")")) {
      s.names.push_back(expect_name());
      s.defaults.push_back(skip_operator("=") ? expression() : nullptr);
      if (!is_operator(")")) expect_operator(",");
    }
    expect_tag_end();
    macros_.insert(s.names.front());
    s.branches.push_back({nullptr, statements()});
    if (const std::string name = closing(s, "macro"); name != "endmacro")
      fail_at(ErrorCode::kFormat, peek().at, "{} in a macro", in_quotes(name));
    if (peek().kind == TokenKind::kName) take();  // its name may be said again
    expect_tag_end();
  }

  // --- expressions, from the loosest to the tightest
  ExprPtr expression(bool with_conditional = true) {
    const Nesting nesting(*this);
    ExprPtr e = disjunction();
    while (with_conditional && is_word("if")) {
      const Position at = take().at;
      ExprPtr condition = disjunction();
      ExprPtr otherwise = skip_word("else") ? expression() : nullptr;
      e = make_parent(ExprKind::kConditional, at, {}, std::move(e), std::move(condition), std::move(otherwise));
    }
    return e;
  }

  ExprPtr disjunction() {
    ExprPtr e = conjunction();
    while (is_word("or")) {
      const Position at = take().at;
      e = make_parent(ExprKind::kOr, at, {}, std::move(e), conjunction());
    }
    return e;
  }

  ExprPtr conjunction() {
    ExprPtr e = negation();
    while (is_word("and")) {
      const Position at = take().at;
      e = make_parent(ExprKind::kAnd, at, {}, std::move(e), negation());
    }
    return e;
  }

  ExprPtr negation() {
    if (!is_word("not")) return comparison();
    const Nesting nesting(*this);
    const Position at = take().at;
    return make_parent(ExprKind::kNot, at, {}, negation());
  }

  // The operator at hand, "" when it is none.
  std::string comparison_operator() {
    for (const std::string_view op : {"==", "!=", "<=", ">=", "<", ">"})
      if (skip_operator(op)) return std::string(op);
    if (skip_word("in")) return "in";
    if (is_word("not") && tokens_[at_ + 1].kind == TokenKind::kName && tokens_[at_ + 1].text == "in")
      return take(), take(), "not in";
    return {};
  }

  ExprPtr comparison() {
    ExprPtr first = sum();
    const Position at = peek().at;
    std::string op = comparison_operator();
    if (op.empty()) return first;
    ExprPtr e = make_parent(ExprKind::kComparison, at, {}, std::move(first));
    for (; !op.empty(); op = comparison_operator()) {
      e->names.push_back(op);
      adopt(*e, sum());
    }
    return e;
  }

  template <class Next>
  ExprPtr left_to_right(std::initializer_list<std::string_view> operators, Next&& next) {
    ExprPtr e = next();
    for (;;) {
      const bool found = peek().kind == TokenKind::kOperator &&
                         std::find(operators.begin(), operators.end(), peek().text) != operators.end();
      if (!found) return e;
      const Token op = take();
      e = make_parent(ExprKind::kOperator, op.at, op.text, std::move(e), next());
    }
  }

  ExprPtr sum() {
    return left_to_right({"+", "-"}, [&] { return concatenation(); });
  }
  ExprPtr concatenation() {
    return left_to_right({"~"}, [&] { return product(); });
  }
  ExprPtr product() {
    ExprPtr e = left_to_right({"*", "//", "%"}, [&] { return unary(true); });
    if (is_operator("/") || is_operator("**"))
      fail_at(ErrorCode::kUnsupported, peek().at, "the operator {} is not supported", peek().text);
    return e;
  }

  ExprPtr unary(bool with_filters) {
    ExprPtr e;
    const Position at = peek().at;
    if (is_operator("-") || is_operator("+")) {
      const Nesting nesting(*this);
      const bool minus = take().text == "-";
      e = unary(false);
      if (minus) e = make_parent(ExprKind::kNegate, at, {}, std::move(e));
    } else {
      e = primary();
    }
    e = postfix(std::move(e));
    while (with_filters) {
      if (is_operator("|"))
        e = filter(std::move(e));
      else if (is_word("is"))
        e = test(std::move(e));
      else
        break;
    }
    return e;
  }

  ExprPtr filter(ExprPtr subject) {
    const Position at = take().at;
    ExprPtr e = make_parent(ExprKind::kFilter, at, expect_name(), std::move(subject));
    if (!is_filter(e->name)) fail_at(ErrorCode::kUnsupported, at, "the filter {} is not supported", in_quotes(e->name));
    if (is_operator("(")) arguments(*e);
    return e;
  }

  ExprPtr test(ExprPtr subject) {
    const Position at = take().at;
    const bool inverse = skip_word("not");
    ExprPtr e = make_parent(ExprKind::kTest, at, expect_name(), std::move(subject));
    if (!is_test(e->name)) fail_at(ErrorCode::kUnsupported, at, "the test {} is not supported", in_quotes(e->name));
    return inverse ? make_parent(ExprKind::kNot, at, {}, std::move(e)) : std::move(e);
  }

  ExprPtr primary() {
    const Token token = peek();
    switch (token.kind) {
      case TokenKind::kName: take(); return name(token);
      case TokenKind::kNumber: take(); return constant(token.at, token.number);
      case TokenKind::kString: {
        std::string text;
        while (peek().kind == TokenKind::kString) text += take().text;  // neighbours are one string
        return constant(token.at, Text(std::move(text)));
      }
      default: break;
    }
    if (skip_operator("(")) return parenthesis(token.at);
    if (skip_operator("[")) {
      ExprPtr e = make(ExprKind::kList, token.at);
      elements(*e, "]");
      return e;
    }
    if (skip_operator("{")) return dictionary(token.at);
    unexpected("an expression");
  }

  ExprPtr name(const Token& token) {
    const std::string& n = token.text;
    if (n == "true" || n == "True") return constant(token.at, true);
    if (n == "false" || n == "False") return constant(token.at, false);
    if (n == "none" || n == "None") return constant(token.at, None{});
    if (!is_operator("(")) return make(ExprKind::kName, token.at, n);
    if (!is_function(n) && !macros_.contains(n))
      fail_at(ErrorCode::kUnsupported, token.at, "the function {} is not supported", in_quotes(n));
    ExprPtr e = make(ExprKind::kFunction, token.at, n);
    arguments(*e);
    return e;
  }

  // (e) is e, but (), (e,) and (e, e) are lists.
  ExprPtr parenthesis(Position at) {
    ExprPtr list = make(ExprKind::kList, at);
    if (skip_operator(")")) return list;
    ExprPtr first = expression();
    if (skip_operator(")")) return first;
    adopt(*list, std::move(first));
    expect_operator(",");
    elements(*list, ")");
    return list;
  }

  void elements(Expr& list, std::string_view end) {
    while (!skip_operator(end)) {
      adopt(list, expression());
      if (!is_operator(end)) expect_operator(",");
    }
  }

  ExprPtr dictionary(Position at) {
    ExprPtr e = make(ExprKind::kDict, at);
    while (!skip_operator("}")) {
      adopt(*e, expression());
      expect_operator(":");
      adopt(*e, expression());
      if (!is_operator("}")) expect_operator(",");
    }
    return e;
  }

  void arguments(Expr& call) {
    expect_operator("(");
    call.names.resize(call.children.size());
    while (!skip_operator(")")) {
      const bool keyword =
          peek().kind == TokenKind::kName && tokens_[at_ + 1].kind == TokenKind::kOperator && tokens_[at_ + 1].text == "=";
      call.names.push_back(keyword ? take().text : std::string());
      if (keyword) take();
      adopt(call, expression());
      if (!is_operator(")")) expect_operator(",");
    }
  }

  ExprPtr postfix(ExprPtr e) {
    for (;;) {
      const Position at = peek().at;
      if (skip_operator(".")) {
        std::string member = expect_name();
        const bool call = is_operator("(");
        if (call && !is_method(member))
          fail_at(ErrorCode::kUnsupported, at, "the method {} is not supported", in_quotes(member));
        e = make_parent(call ? ExprKind::kMethod : ExprKind::kMember, at, std::move(member), std::move(e));
        if (call) arguments(*e);
      } else if (skip_operator("[")) {
        e = subscript(std::move(e), at);
      } else if (is_operator("(")) {
        fail_at(ErrorCode::kUnsupported, at, "a call of anything but a known name is not supported");
      } else {
        return e;
      }
    }
  }

  ExprPtr subscript(ExprPtr subject, Position at) {
    const auto part = [&]() -> ExprPtr { return is_operator(":") || is_operator("]") ? nullptr : expression(); };
    ExprPtr first = part();
    if (first && skip_operator("]")) return make_parent(ExprKind::kItem, at, {}, std::move(subject), std::move(first));
    expect_operator(":");
    ExprPtr second = part();
    ExprPtr third = skip_operator(":") ? part() : nullptr;
    expect_operator("]");
    return make_parent(ExprKind::kSlice, at, {}, std::move(subject), std::move(first), std::move(second), std::move(third));
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  std::set<std::string> macros_;  // that came before
};

}  // namespace

Block parse(std::string_view source) { return Parser(source).run(); }

}  // namespace dsmoe::jinja
