// Walks through a template's tree and writes the text.
#include "tokenizer/jinja_render.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <map>
#include <optional>

#include "core/printable.h"
#include "tokenizer/jinja_functions.h"

namespace dsmoe::jinja {

namespace {

enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };

class Renderer {
 public:
  explicit Renderer(Dict globals) { scopes_.push_back(std::move(globals)); }

  Text run(const Block& block) {
    execute(block);
    return std::move(out_);
  }

 private:
  // --- statements
  Flow execute(const Block& block) {
    for (const Statement& s : block) {
      const Flow flow = execute(s);
      if (flow != Flow::kNormal) return flow;
    }
    return Flow::kNormal;
  }

  Flow execute(const Statement& s) {
    budget_.step(s.at);
    switch (s.kind) {
      case StatementKind::kText: write(Text(s.text), s.at); break;
      case StatementKind::kPrint: write(to_text(evaluate(*s.expression), s.at), s.at); break;
      case StatementKind::kSet: set(s); break;
      case StatementKind::kMacro: macros_[s.names.front()] = &s; break;
      case StatementKind::kFor: return loop(s);
      case StatementKind::kBreak: return Flow::kBreak;
      case StatementKind::kContinue: return Flow::kContinue;
      case StatementKind::kIf:
        for (const Branch& branch : s.branches)
          if (!branch.condition || evaluate(*branch.condition).truth()) return execute(branch.body);
    }
    return Flow::kNormal;
  }

  void write(const Text& text, Position at) {
    budget_.bytes(at, text.bytes().size());
    out_.append(text);
  }

  void set(const Statement& s) {
    Value value = evaluate(*s.expression);
    if (s.names.size() == 1) return assign(scopes_.back(), s.names[0], std::move(value));
    Namespace* target = lookup(s.names[0]).name_space();
    if (!target) fail_at(ErrorCode::kFormat, s.at, "{} is not a namespace", in_quotes(s.names[0]));
    if (value.name_space()) fail_at(ErrorCode::kUnsupported, s.at, "a namespace in a namespace is not supported");
    assign(target->members, s.names[1], std::move(value));
  }

  // Gives the loop's variables a value; a list of names takes an item apart.
  void bind(const Statement& s, const Value& item) {
    if (s.names.size() == 1) return assign(scopes_.back(), s.names[0], item);
    const List* parts = item.list();
    if (!parts || parts->size() != s.names.size())
      fail_at(ErrorCode::kFormat, s.at, "an item of the loop does not have {} parts", s.names.size());
    for (std::size_t i = 0; i < parts->size(); ++i) assign(scopes_.back(), s.names[i], (*parts)[i]);
  }

  Flow loop(const Statement& s) {
    Arguments arguments{s.at, "list", {}, {}, budget_};
    List items = *call_filter(evaluate(*s.expression), arguments).list();
    if (s.condition) {
      List kept;
      for (const Value& item : items) {
        scopes_.emplace_back();
        bind(s, item);
        if (evaluate(*s.condition).truth()) kept.push_back(item);
        scopes_.pop_back();
      }
      items = std::move(kept);
    }
    Flow flow = Flow::kNormal;
    bool finished_one = false;
    for (std::size_t i = 0; i < items.size() && flow != Flow::kBreak; ++i) {
      scopes_.emplace_back();
      bind(s, items[i]);
      const auto index = static_cast<std::int64_t>(i), count = static_cast<std::int64_t>(items.size());
      assign(scopes_.back(), "loop",
             Dict{{"index", index + 1},
                  {"index0", index},
                  {"revindex", count - index},
                  {"revindex0", count - index - 1},
                  {"first", i == 0},
                  {"last", i + 1 == items.size()},
                  {"length", count},
                  {"previtem", i == 0 ? Value() : items[i - 1]},
                  {"nextitem", i + 1 == items.size() ? Value() : items[i + 1]}});
      flow = execute(s.branches[0].body);
      scopes_.pop_back();
      finished_one |= flow == Flow::kNormal;
    }
    // As Jinja does it: else runs when no round came to its end, be it for want of items or by break and continue.
    if (finished_one || s.branches.size() == 1) return Flow::kNormal;
    scopes_.emplace_back();
    flow = execute(s.branches[1].body);
    scopes_.pop_back();
    return flow;
  }

  // --- expressions
  Value lookup(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const Value* value = find(*scope, name)) return *value;
    return {};
  }

  Value evaluate(const Expr& e) {
    budget_.step(e.at);
    const auto child = [&](std::size_t i) { return evaluate(*e.children[i]); };
    switch (e.kind) {
      case ExprKind::kConstant: return e.value;
      case ExprKind::kName: return lookup(e.name);
      case ExprKind::kList: return list(e);
      case ExprKind::kDict: return dict(e);
      case ExprKind::kMember: return member(e, child(0), e.name);
      case ExprKind::kItem: return item(e, child(0), child(1));
      case ExprKind::kSlice: return slice(e);
      case ExprKind::kFunction:
      case ExprKind::kMethod:
      case ExprKind::kFilter: return call(e);
      case ExprKind::kTest: return run_test(child(0), e.name);
      case ExprKind::kNot: return !child(0).truth();
      case ExprKind::kNegate: return arithmetic(e, "-", Value(std::int64_t{0}), child(0));
      case ExprKind::kAnd: {
        Value left = child(0);
        return left.truth() ? child(1) : left;
      }
      case ExprKind::kOr: {
        Value left = child(0);
        return left.truth() ? left : child(1);
      }
      case ExprKind::kOperator: return operation(e, child(0), child(1));
      case ExprKind::kComparison: return comparison(e);
      case ExprKind::kConditional:
        if (child(1).truth()) return child(0);
        return e.children[2] ? child(2) : Value();
    }
    return {};
  }

  Value list(const Expr& e) {
    budget_.bytes(e.at, e.children.size() * sizeof(Value));
    List out;
    for (const ExprPtr& c : e.children) out.push_back(evaluate(*c));
    return out;
  }

  Value dict(const Expr& e) {
    budget_.bytes(e.at, e.children.size() * sizeof(Value));
    Dict out;
    for (std::size_t i = 0; i < e.children.size(); i += 2) {
      const Value key = evaluate(*e.children[i]);
      if (!key.string()) fail_at(ErrorCode::kUnsupported, e.at, "a key that is not a string is not supported");
      // Keys are the template's own strings: they are not told apart by who wrote them.
      if (!key.text()->marks().empty())
        fail_at(ErrorCode::kUnsupported, e.at, "a key that comes from a message is not supported");
      assign(out, *key.string(), evaluate(*e.children[i + 1]));
    }
    return out;
  }

  // For messages: what an expression that gave nothing was.
  static std::string describe(const Expr& e) {
    if (e.kind == ExprKind::kName || e.kind == ExprKind::kMember) return in_quotes(e.name);
    return "the value";
  }

  Value member(const Expr& e, const Value& subject, const std::string& name) {
    if (subject.is_undefined())
      fail_at(ErrorCode::kFormat, e.at, "{} is undefined and has no {}", describe(*e.children[0]), in_quotes(name));
    const Dict* members = subject.name_space() ? &subject.name_space()->members : subject.dict();
    const Value* found = members ? find(*members, name) : nullptr;
    return found ? *found : Value();
  }

  Value item(const Expr& e, const Value& subject, const Value& key) {
    if (key.string()) return member(e, subject, *key.string());
    if (subject.is_undefined())
      fail_at(ErrorCode::kFormat, e.at, "{} is undefined and has no items", describe(*e.children[0]));
    if (!key.number() || (!subject.list() && !subject.string())) return {};
    const Value items = subject.list() ? subject : characters(e, subject);
    const auto size = static_cast<std::int64_t>(items.list()->size());
    const std::int64_t index = *key.number() < 0 ? *key.number() + size : *key.number();
    return index < 0 || index >= size ? Value() : (*items.list())[static_cast<std::size_t>(index)];
  }

  Value characters(const Expr& e, const Value& subject) {
    Arguments arguments{e.at, "list", {}, {}, budget_};
    return call_filter(subject, arguments);
  }

  Value slice(const Expr& e) {
    const Value subject = evaluate(*e.children[0]);
    if (!subject.list() && !subject.string()) fail_at(ErrorCode::kFormat, e.at, "a slice of {}", subject.type_name());
    const Value items = subject.list() ? subject : characters(e, subject);
    const auto part = [&](std::size_t i) -> std::optional<std::int64_t> {
      const Value value = e.children[i] ? evaluate(*e.children[i]) : Value(None{});
      if (value.is_none()) return std::nullopt;
      if (!value.number()) fail_at(ErrorCode::kFormat, e.at, "a slice by something that is not an integer");
      return *value.number();
    };
    const std::int64_t step = part(3).value_or(1);
    if (step != 1 && step != -1) fail_at(ErrorCode::kUnsupported, e.at, "a slice with a step of {} is not supported", step);
    // Python's rules: negative positions count from the end, and all are clamped.
    const auto size = static_cast<std::int64_t>(items.list()->size());
    const std::int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
    const auto clamp = [&](std::optional<std::int64_t> at, std::int64_t otherwise) {
      return at ? std::clamp(*at < 0 ? *at + size : *at, lowest, highest) : otherwise;
    };
    const std::int64_t begin = clamp(part(1), step > 0 ? lowest : highest),
                       end = clamp(part(2), step > 0 ? highest : lowest);
    List out;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step)
      out.push_back((*items.list())[static_cast<std::size_t>(i)]);
    budget_.bytes(e.at, out.size() * sizeof(Value));
    if (subject.list()) return out;
    Text text;
    for (const Value& character : out) text.append(*character.text());
    return text;
  }

  Value call(const Expr& e) {
    const bool has_subject = e.kind != ExprKind::kFunction;
    const Value subject = has_subject ? evaluate(*e.children[0]) : Value();
    if (e.kind == ExprKind::kMethod && subject.is_undefined())
      fail_at(ErrorCode::kFormat, e.at, "{} is undefined and has no {}", describe(*e.children[0]), in_quotes(e.name));
    Arguments arguments{e.at, e.name, {}, {}, budget_};
    for (std::size_t i = has_subject ? 1 : 0; i < e.children.size(); ++i) {
      arguments.values.push_back(evaluate(*e.children[i]));
      arguments.names.push_back(e.names[i]);
    }
    if (e.kind == ExprKind::kFunction) {
      const auto macro = macros_.find(e.name);
      return macro == macros_.end() ? call_function(arguments) : call_macro(*macro->second, arguments);
    }
    return e.kind == ExprKind::kMethod ? call_method(subject, arguments) : call_filter(subject, arguments);
  }

  // What the macro's body writes, which sees its parameters and what is set outside of all loops and macros.
  Value call_macro(const Statement& macro, const Arguments& arguments) {
    constexpr int kMaxCalls = 20;  // of macros by macros; each takes some of the thread's stack
    if (++calls_ > kMaxCalls)
      fail_at(ErrorCode::kUnsupported, arguments.at, "{}: macros that call each other more than {} deep are not supported",
              in_quotes(arguments.name), kMaxCalls);
    Dict scope;
    const std::size_t count = macro.defaults.size();
    for (std::size_t i = 0; i < arguments.values.size(); ++i) {
      const std::string& name = arguments.names[i];
      const auto known = std::find(macro.names.begin() + 1, macro.names.end(), name);
      if (name.empty() ? i >= count : known == macro.names.end())
        fail_at(ErrorCode::kFormat, arguments.at, "{} has no such argument", in_quotes(arguments.name));
      assign(scope, name.empty() ? macro.names[i + 1] : name, arguments.values[i]);
    }
    std::vector<Dict> outside(std::make_move_iterator(scopes_.begin() + 1), std::make_move_iterator(scopes_.end()));
    scopes_.resize(1);
    scopes_.push_back(std::move(scope));
    for (std::size_t i = 0; i < count; ++i)
      if (!find(scopes_.back(), macro.names[i + 1]))
        assign(scopes_.back(), macro.names[i + 1], macro.defaults[i] ? evaluate(*macro.defaults[i]) : Value());
    Text before = std::exchange(out_, Text());
    execute(macro.branches[0].body);
    Text written = std::exchange(out_, std::move(before));
    scopes_.resize(1);
    scopes_.insert(scopes_.end(), std::make_move_iterator(outside.begin()), std::make_move_iterator(outside.end()));
    --calls_;
    return written;
  }

  Value operation(const Expr& e, const Value& a, const Value& b) {
    if (e.name == "~") return joined(e, to_text(a, e.at), to_text(b, e.at));
    if (e.name == "+" && a.text() && b.text()) return joined(e, *a.text(), *b.text());
    if (e.name == "+" && a.list() && b.list()) {
      budget_.bytes(e.at, (a.list()->size() + b.list()->size()) * sizeof(Value));
      List out = *a.list();
      out.insert(out.end(), b.list()->begin(), b.list()->end());
      return out;
    }
    return arithmetic(e, e.name, a, b);
  }

  Value joined(const Expr& e, Text a, const Text& b) {
    budget_.bytes(e.at, a.bytes().size() + b.bytes().size());
    return std::move(a.append(b));
  }

  static Value arithmetic(const Expr& e, std::string_view op, const Value& left, const Value& right) {
    if (!left.number() || !right.number())
      fail_at(ErrorCode::kFormat, e.at, "{} {} {} is not possible (or not supported)", left.type_name(), op,
              right.type_name());
    const std::int64_t a = *left.number(), b = *right.number();
    std::int64_t out = 0;
    bool overflow = false;
    if (op == "+") overflow = __builtin_add_overflow(a, b, &out);
    if (op == "-") overflow = __builtin_sub_overflow(a, b, &out);
    if (op == "*") overflow = __builtin_mul_overflow(a, b, &out);
    if (op == "//" || op == "%") {
      overflow = b == 0 || (a == std::numeric_limits<std::int64_t>::min() && b == -1);
      if (!overflow) {
        // Python rounds down; the remainder has the sign of the divisor.
        const std::int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
        out = op == "%" ? a - quotient * b : quotient;
      }
    }
    if (overflow) fail_at(ErrorCode::kFormat, e.at, "{} {} {} has no result in 64 bits", a, op, b);
    return out;
  }

  Value comparison(const Expr& e) {
    Value left = evaluate(*e.children[0]);
    for (std::size_t i = 0; i < e.names.size(); ++i) {
      Value right = evaluate(*e.children[i + 1]);
      if (!compare(e, e.names[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  static bool compare(const Expr& e, std::string_view op, const Value& a, const Value& b) {
    if (op == "==") return a == b;
    if (op == "!=") return !(a == b);
    if (op == "in") return contains(e, b, a);
    if (op == "not in") return !contains(e, b, a);
    std::strong_ordering order = std::strong_ordering::equal;
    if (a.number() && b.number())
      order = *a.number() <=> *b.number();
    else if (a.string() && b.string())
      order = *a.string() <=> *b.string();
    else
      fail_at(ErrorCode::kFormat, e.at, "{} {} {} is not possible (or not supported)", a.type_name(), op, b.type_name());
    if (op == "<") return order < 0;
    if (op == ">") return order > 0;
    return op == "<=" ? order <= 0 : order >= 0;
  }

  static bool contains(const Expr& e, const Value& container, const Value& value) {
    if (const List* items = container.list()) return std::find(items->begin(), items->end(), value) != items->end();
    if (container.dict()) return value.string() && find(*container.dict(), *value.string());
    if (container.string() && value.string()) return container.string()->find(*value.string()) != std::string::npos;
    if (container.is_undefined()) return false;
    fail_at(ErrorCode::kFormat, e.at, "{} in {} is not possible", value.type_name(), container.type_name());
  }

  std::vector<Dict> scopes_;
  std::map<std::string, const Statement*> macros_;
  int calls_ = 0;
  Budget budget_;
  Text out_;
};

}  // namespace

Text render(const Block& block, Dict globals) { return Renderer(std::move(globals)).run(block); }

}  // namespace dsmoe::jinja
