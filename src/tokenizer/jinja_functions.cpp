#include "tokenizer/jinja_functions.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "core/json_read.h"
#include "core/printable.h"
#include "core/utf8.h"

namespace dsmoe::jinja {

namespace {

// One call: the subject (of a filter or method), the arguments in the order of the parameters, undefined when left out.
struct Call {
  const Value& subject;
  std::vector<Value> arguments;
  std::vector<bool> given;
  Position at;
  std::string_view name;
  Budget& budget;

  [[noreturn]] void refuse(std::string_view why) const { fail_at(ErrorCode::kUnsupported, at, "{}: {}", name, why); }
  const Value& operator[](std::size_t i) const { return arguments[i]; }
  // Anything that has a text, as filters take it.
  Text text() const { return made(to_text(subject, at)); }
  const Text& string(const Value& value) const {
    if (!value.text()) refuse(fmt::format("expected a string, found {}", value.type_name()));
    return *value.text();
  }
  const Text& self() const { return string(subject); }
  const Dict& dict() const {
    if (!subject.dict()) refuse(fmt::format("expected a dict, found {}", subject.type_name()));
    return *subject.dict();
  }
  Text made(Text value) const {
    budget.bytes(at, value.bytes().size());
    return value;
  }
  List made(List value) const {
    budget.bytes(at, value.size() * sizeof(Value));
    return value;
  }
};

bool is_python_space(char32_t c) { return utf8::is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

Text strip(const Call& call, const Text& whole, bool left, bool right) {
  std::string_view text = whole.bytes();
  std::u32string set;
  if (const Value& chars = call[0]; !chars.is_undefined() && !chars.is_none()) {
    const std::string& s = call.string(chars).bytes();
    for (std::size_t at = 0; at < s.size();) set += utf8::next(s, at);
    if (set.empty()) return call.made(whole);
  }
  const auto drop = [&](char32_t c) { return set.empty() ? is_python_space(c) : set.find(c) != std::u32string::npos; };
  while (left && !text.empty()) {
    std::size_t at = 0;
    if (!drop(utf8::next(text, at))) break;
    text.remove_prefix(at);
  }
  while (right && !text.empty()) {
    const std::size_t before = utf8::previous(text, text.size());
    std::size_t at = before;
    if (!drop(utf8::next(text, at))) break;
    text = text.substr(0, before);
  }
  return call.made(whole.substr(static_cast<std::size_t>(text.data() - whole.bytes().data()), text.size()));
}

// Upper and lower case of other scripts would need Unicode's tables.
Text change_case(const Call& call, const Text& whole, bool first_upper, bool rest_upper) {
  std::string text = whole.bytes();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80) call.refuse("letters beyond ASCII are not supported");
    text[i] = static_cast<char>((i == 0 ? first_upper : rest_upper) ? std::toupper(c) : std::tolower(c));
  }
  return whole.with_bytes(std::move(text));
}

Text replace(const Call& call, const Text& text) {
  const std::string& from = call.string(call[0]).bytes();
  const Text& to = call.string(call[1]);
  if (from.empty()) call.refuse("replacing an empty string is not supported");
  Text out;
  std::size_t done = 0;
  for (std::size_t at; (at = text.bytes().find(from, done)) != std::string::npos; done = at + from.size()) {
    call.budget.bytes(call.at, at - done + to.bytes().size());
    out.append(text, done, at - done).append(to);
  }
  return std::move(out.append(text, done));
}

List split(const Call& call) {
  const Text& whole = call.self();
  const std::string& text = whole.bytes();
  std::int64_t most = call[1].number() ? *call[1].number() : -1;
  const bool spaces = call[0].is_undefined() || call[0].is_none();
  if (spaces && most >= 0) call.refuse("a limit without a separator is not supported");
  List out;
  std::size_t at = 0;
  if (spaces) {
    std::size_t begin = 0;
    const auto flush = [&](std::size_t end) {
      if (end > begin) out.push_back(call.made(whole.substr(begin, end - begin)));
    };
    while (at < text.size()) {
      const std::size_t here = at;
      if (!is_python_space(utf8::next(text, at))) continue;
      flush(here);
      begin = at;
    }
    flush(text.size());
    return call.made(std::move(out));
  }
  const std::string& separator = call.string(call[0]).bytes();
  if (separator.empty()) call.refuse("the separator is empty");
  for (std::size_t next; most-- != 0 && (next = text.find(separator, at)) != std::string::npos;
       at = next + separator.size())
    out.push_back(call.made(whole.substr(at, next - at)));
  out.push_back(call.made(whole.substr(at)));
  return call.made(std::move(out));
}

// What for, list, first, last, join and length go through.
List items_of(const Call& call) {
  List out;
  const Value& v = call.subject;
  if (const auto* list = v.list()) return call.made(*list);
  if (const auto* dict = v.dict()) {
    for (const auto& entry : *dict) out.push_back(v.key(entry.first));
  } else if (const Text* s = v.text()) {
    call.budget.bytes(call.at, s->bytes().size() * sizeof(Value));
    for (std::size_t at = 0; at < s->bytes().size();) {
      const std::size_t begin = at;
      utf8::next(s->bytes(), at);
      out.push_back(s->substr(begin, at - begin));
    }
  } else if (!v.is_undefined()) {
    call.refuse(fmt::format("{} has no items", v.type_name()));
  }
  return call.made(std::move(out));
}

Value length(const Call& call) { return static_cast<std::int64_t>(items_of(call).size()); }

Value first(const Call& call) {
  const List items = items_of(call);
  return items.empty() ? Value() : items.front();
}

Value last(const Call& call) {
  const List items = items_of(call);
  return items.empty() ? Value() : items.back();
}

Value join(const Call& call) {
  const Text separator = call[0].is_undefined() ? Text() : to_text(call[0], call.at);
  Text out;
  bool first = true;
  for (const Value& item : items_of(call)) {
    const Text text = to_text(item, call.at);
    call.budget.bytes(call.at, (first ? 0 : separator.bytes().size()) + text.bytes().size());
    if (!std::exchange(first, false)) out.append(separator);
    out.append(text);
  }
  return out;
}

Value use_default(const Call& call) {
  const bool replace_it = call.subject.is_undefined() || (call[1].truth() && !call.subject.truth());
  if (!replace_it) return call.subject;
  return call.given[0] ? call[0] : Value(Text());
}

Value to_integer(const Call& call) {
  if (const auto* n = call.subject.number()) return *n;
  if (call.subject.real()) call.refuse("a float is not supported");
  std::int64_t value = 0;
  if (const auto* s = call.subject.string()) {
    const auto [end, error] = std::from_chars(s->data(), s->data() + s->size(), value);
    if (error == std::errc() && end == s->data() + s->size()) return value;
  }
  return call.given[0] ? call[0] : Value(std::int64_t{0});
}

// A string in JSON's quotes. Characters are escaped one by one, so parts of different origin can be escaped apart.
void write_quoted(const Call& call, const Text& text, Text& out) {
  call.budget.bytes(call.at, text.bytes().size());
  const auto escaped = [&](std::size_t begin, std::size_t end) {
    const std::string part = text.bytes().substr(begin, end - begin);
    const std::string quoted = nlohmann::json(part).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return quoted.substr(1, quoted.size() - 2);
  };
  out.append(Text("\""));
  std::size_t done = 0;
  for (const TextRange& range : text.marks()) {
    out.append(Text(escaped(done, range.begin))).append(Text::of_message(escaped(range.begin, range.end)));
    done = range.end;
  }
  out.append(Text(escaped(done, text.bytes().size()))).append(Text("\""));
}

// Python's repr(): the shortest digits that are read back as the same number.
std::string written(double value) {
  std::string out = fmt::format("{}", value);
  return out.find_first_not_of("-0123456789") == std::string::npos ? out + ".0" : out;
}

// Python's json.dumps(value, ensure_ascii=False, indent=...); indent -1: None.
void write_json(const Call& call, const Value& value, std::int64_t indent, std::int64_t depth, Text& out) {
  const auto put = [&](std::string text) { out.append(Text(std::move(text))); };
  if (value.text()) return write_quoted(call, *value.text(), out);
  if (value.is_none()) return put("null");
  if (value.is_bool()) return put(value.truth() ? "true" : "false");
  if (value.is_integer()) return put(std::to_string(*value.number()));
  if (value.real()) return put(written(*value.real()));
  if (!value.list() && !value.dict()) call.refuse(fmt::format("{} has no JSON", value.type_name()));
  const auto line = [&](std::int64_t level) {
    if (indent >= 0) put(fmt::format("\n{:{}}", "", indent * level));
  };
  const bool any = value.truth();
  const char* comma = "";
  const auto next = [&] {
    put(std::exchange(comma, indent >= 0 ? "," : ", "));
    line(depth + 1);
  };
  put(value.list() ? "[" : "{");
  if (value.list())
    for (const Value& item : *value.list()) {
      next();
      write_json(call, item, indent, depth + 1, out);
    }
  else
    for (const auto& [key, item] : *value.dict()) {
      next();
      write_quoted(call, value.key(key), out);
      put(": ");
      write_json(call, item, indent, depth + 1, out);
    }
  if (any) line(depth);
  put(value.list() ? "]" : "}");
}

Value to_json(const Call& call) {
  if (call[0].truth()) call.refuse("ensure_ascii is not supported");
  if (call.given[1] && !call[1].is_none() && (!call[1].is_integer() || *call[1].number() < 0 || *call[1].number() > 16))
    call.refuse("an indent that is no number from 0 to 16 is not supported");
  Text out;
  write_json(call, call.subject, call[1].is_integer() ? *call[1].number() : -1, 0, out);
  return call.made(std::move(out));
}

const Value& member_of(const Value& value, const std::string& name) {
  static const Value kUndefined;
  const Value* const found = value.dict() ? find(*value.dict(), name) : nullptr;
  return found ? *found : kUndefined;
}

// selectattr and rejectattr: items whose attribute passes a test, or is true without one.
Value select(const Call& call, bool wanted) {
  const std::string& attribute = call.string(call[0]).bytes();
  if (attribute.find('.') != std::string::npos) call.refuse("an attribute with a dot is not supported");
  const std::string test = call.given[1] ? call.string(call[1]).bytes() : "";
  const bool compares = test == "equalto" || test == "eq" || test == "==" || test == "ne" || test == "!=";
  if (!test.empty() && !compares && !is_test(test))
    call.refuse(fmt::format("the test {} is not supported", in_quotes(test)));
  if (compares != call.given[2]) call.refuse("a test with this number of arguments is not supported");
  List out;
  for (const Value& item : items_of(call)) {
    const Value& value = member_of(item, attribute);
    const bool equal = compares && value == call[2];
    const bool passes = test.empty() ? value.truth()
                        : compares   ? equal != (test[0] == 'n' || test[0] == '!')
                                     : run_test(value, test);
    if (passes == wanted) out.push_back(item);
  }
  return call.made(std::move(out));
}

Value dict_items(const Call& call) {
  List out;
  if (call.subject.is_undefined()) return out;
  for (const auto& [key, value] : call.dict()) out.push_back(List{call.subject.key(key), value});
  return call.made(std::move(out));
}

Value dict_values(const Call& call) {
  List out;
  for (const auto& entry : call.dict()) out.push_back(entry.second);
  return call.made(std::move(out));
}

Value dict_get(const Call& call) {
  const Value* found = find(call.dict(), call.string(call[0]).bytes());
  if (found) return *found;
  return call.given[1] ? call[1] : Value(None{});
}

Value range(const Call& call) {
  const auto number = [&](std::size_t i, std::int64_t otherwise) {
    if (call[i].is_undefined()) return otherwise;
    if (!call[i].number()) call.refuse("expected an integer");
    return *call[i].number();
  };
  const bool from_zero = call[1].is_undefined();
  const std::int64_t begin = from_zero ? 0 : number(0, 0), end = number(from_zero ? 0 : 1, 0), step = number(2, 1);
  if (step == 0) call.refuse("a step of 0");
  List out;
  if (step > 0 ? begin >= end : begin <= end) return out;
  const auto first = static_cast<std::uint64_t>(begin), last = static_cast<std::uint64_t>(end),
             by = static_cast<std::uint64_t>(step);
  const std::uint64_t count = step > 0 ? (last - first - 1) / by + 1 : (first - last - 1) / (0 - by) + 1;
  call.budget.bytes(call.at, count > (1u << 24) ? SIZE_MAX : count * sizeof(Value));
  for (std::uint64_t i = 0; i < count; ++i) out.push_back(static_cast<std::int64_t>(first + i * by));
  return out;
}

Value raise_exception(const Call& call) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the chat template refuses this conversation: {}", to_text(call[0], call.at).bytes()));
}

struct Entry {
  std::string_view name;
  std::vector<std::string_view> parameters;
  std::size_t required;
  Value (*run)(const Call&);
};

const std::vector<Entry>& functions() {
  static const std::vector<Entry> table = {
      {"raise_exception", {"message"}, 1, raise_exception},
      {"range", {"start", "stop", "step"}, 1, range},
      // Never defined here, so that a prompt does not depend on the day: templates that ask first have a date of their own.
      {"strftime_now", {"format"}, 1, [](const Call& c) -> Value { c.refuse("today's date is not supported"); }},
  };
  return table;
}

const std::vector<Entry>& filters() {
  static const std::vector<Entry> table = {
      {"trim", {"chars"}, 0, [](const Call& c) { return Value(strip(c, c.text(), true, true)); }},
      {"upper", {}, 0, [](const Call& c) { return Value(change_case(c, c.text(), true, true)); }},
      {"lower", {}, 0, [](const Call& c) { return Value(change_case(c, c.text(), false, false)); }},
      {"capitalize", {}, 0, [](const Call& c) { return Value(change_case(c, c.text(), true, false)); }},
      {"string", {}, 0, [](const Call& c) { return Value(c.text()); }},
      {"safe", {}, 0, [](const Call& c) { return Value(c.text()); }},  // nothing is escaped here anyway
      {"replace", {"old", "new"}, 2, [](const Call& c) { return Value(replace(c, c.text())); }},
      {"list", {}, 0, [](const Call& c) { return Value(items_of(c)); }},
      {"length", {}, 0, length},
      {"count", {}, 0, length},
      {"first", {}, 0, first},
      {"last", {}, 0, last},
      {"join", {"d"}, 0, join},
      {"default", {"default_value", "boolean"}, 0, use_default},
      {"d", {"default_value", "boolean"}, 0, use_default},
      {"int", {"default"}, 0, to_integer},
      {"items", {}, 0, dict_items},
      {"tojson", {"ensure_ascii", "indent"}, 0, to_json},
      {"selectattr", {"attribute", "test", "value"}, 1, [](const Call& c) { return select(c, true); }},
      {"rejectattr", {"attribute", "test", "value"}, 1, [](const Call& c) { return select(c, false); }},
  };
  return table;
}

// Hugging Face's templates run where this is an error too; one in a branch that is not taken is none.
Value refuse_change(const Call& call) { call.refuse("changes its object, which a template may not"); }

const std::vector<Entry>& methods() {
  static const std::vector<Entry> table = {
      {"strip", {"chars"}, 0, [](const Call& c) { return Value(strip(c, c.self(), true, true)); }},
      {"lstrip", {"chars"}, 0, [](const Call& c) { return Value(strip(c, c.self(), true, false)); }},
      {"rstrip", {"chars"}, 0, [](const Call& c) { return Value(strip(c, c.self(), false, true)); }},
      {"upper", {}, 0, [](const Call& c) { return Value(change_case(c, c.self(), true, true)); }},
      {"lower", {}, 0, [](const Call& c) { return Value(change_case(c, c.self(), false, false)); }},
      {"capitalize", {}, 0, [](const Call& c) { return Value(change_case(c, c.self(), true, false)); }},
      {"startswith",
       {"prefix"},
       1,
       [](const Call& c) { return Value(c.self().bytes().starts_with(c.string(c[0]).bytes())); }},
      {"endswith", {"suffix"}, 1, [](const Call& c) { return Value(c.self().bytes().ends_with(c.string(c[0]).bytes())); }},
      {"replace", {"old", "new"}, 2, [](const Call& c) { return Value(replace(c, c.self())); }},
      {"split", {"sep", "maxsplit"}, 0, [](const Call& c) { return Value(split(c)); }},
      {"items", {}, 0, dict_items},
      {"keys", {}, 0, [](const Call& c) { return c.dict(), Value(items_of(c)); }},
      {"values", {}, 0, dict_values},
      {"get", {"key", "default"}, 1, dict_get},
      {"append", {"object"}, 0, refuse_change},
      {"extend", {"iterable"}, 0, refuse_change},
      {"insert", {"index", "object"}, 0, refuse_change},
      {"pop", {"key", "default"}, 0, refuse_change},
      {"update", {"other"}, 0, refuse_change},
  };
  return table;
}

const Entry* find_entry(const std::vector<Entry>& table, std::string_view name) {
  const auto it = std::find_if(table.begin(), table.end(), [&](const Entry& e) { return e.name == name; });
  return it == table.end() ? nullptr : &*it;
}

Value call_entry(const std::vector<Entry>& table, const Value& subject, Arguments& arguments) {
  const Entry* entry = find_entry(table, arguments.name);
  invariant(entry != nullptr, "a name that the parser let pass is not in the table");
  const std::size_t count = entry->parameters.size();
  Call call{subject, List(count), std::vector<bool>(count), arguments.at, arguments.name, arguments.budget};
  for (std::size_t i = 0; i < arguments.values.size(); ++i) {
    const std::string& name = arguments.names[i];
    const auto& parameters = entry->parameters;
    const std::size_t slot =
        name.empty() ? i
                     : static_cast<std::size_t>(std::find(parameters.begin(), parameters.end(), name) - parameters.begin());
    if (slot >= parameters.size())
      call.refuse(name.empty() ? "too many arguments" : fmt::format("the argument {} is not supported", in_quotes(name)));
    call.arguments[slot] = arguments.values[i];
    call.given[slot] = true;
  }
  if (std::find(call.given.begin(), call.given.begin() + static_cast<std::ptrdiff_t>(entry->required), false) !=
      call.given.begin() + static_cast<std::ptrdiff_t>(entry->required))
    call.refuse("an argument is missing");
  return entry->run(call);
}

struct Test {
  std::string_view name;
  bool (*run)(const Value&);
};
constexpr Test kTests[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"string", [](const Value& v) { return v.string() != nullptr; }},
    {"number", [](const Value& v) { return v.number() || v.real(); }},
    {"integer", [](const Value& v) { return v.is_integer(); }},
    {"float", [](const Value& v) { return v.real() != nullptr; }},
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"true", [](const Value& v) { return v.is_bool() && v.truth(); }},
    {"false", [](const Value& v) { return v.is_bool() && !v.truth(); }},
    {"mapping", [](const Value& v) { return v.dict() != nullptr; }},
    {"sequence", [](const Value& v) { return v.string() || v.list() || v.dict() || v.is_undefined(); }},
    {"iterable", [](const Value& v) { return v.string() || v.list() || v.dict() || v.is_undefined(); }},
    {"odd", [](const Value& v) { return v.number() && *v.number() % 2 != 0; }},
    {"even", [](const Value& v) { return v.number() && *v.number() % 2 == 0; }},
};

const Test* find_test(std::string_view name) {
  const auto* it = std::find_if(std::begin(kTests), std::end(kTests), [&](const Test& t) { return t.name == name; });
  return it == std::end(kTests) ? nullptr : it;
}

}  // namespace

bool is_function(std::string_view name) { return name == "namespace" || find_entry(functions(), name); }
bool is_filter(std::string_view name) { return find_entry(filters(), name); }
bool is_method(std::string_view name) { return find_entry(methods(), name); }
bool is_test(std::string_view name) { return find_test(name); }

bool run_test(const Value& subject, std::string_view name) { return find_test(name)->run(subject); }

Value call_function(Arguments& arguments) {
  if (arguments.name != "namespace") return call_entry(functions(), {}, arguments);
  auto made = std::make_shared<Namespace>();
  for (std::size_t i = 0; i < arguments.values.size(); ++i) {
    if (arguments.names[i].empty())
      fail_at(ErrorCode::kUnsupported, arguments.at, "namespace: an argument without a name is not supported");
    assign(made->members, arguments.names[i], arguments.values[i]);
  }
  return made;
}

Value call_filter(const Value& subject, Arguments& arguments) { return call_entry(filters(), subject, arguments); }
Value call_method(const Value& subject, Arguments& arguments) { return call_entry(methods(), subject, arguments); }

Text to_text(const Value& value, Position at) {
  if (value.is_undefined()) return {};
  if (value.is_none()) return Text("None");
  if (value.is_bool()) return Text(value.truth() ? "True" : "False");
  if (value.is_integer()) return Text(std::to_string(*value.number()));
  if (value.real()) return Text(written(*value.real()));
  if (value.text()) return *value.text();
  fail_at(ErrorCode::kUnsupported, at, "a {} as text is not supported (tojson writes one)", value.type_name());
}

}  // namespace dsmoe::jinja
