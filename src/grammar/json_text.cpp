#include "grammar/json_text.h"

#include <algorithm>

#include "core/utf8.h"

namespace dsmoe::grammar {

namespace {

const CharSet& json_control() {
  static const CharSet set({{0, 0x1F}});
  return set;
}
const CharSet& json_escaped() {
  static const CharSet set({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  return set;
}
// Control characters that have a short escape, and its letter.
constexpr std::pair<char, char> kShortEscapes[] = {{'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'},
                                                   {'\t', 't'}, {'"', '"'},  {'\\', '\\'}};

std::u32string code_points(const std::string& text) {
  std::u32string out;
  for (std::size_t at = 0; at < text.size();) out.push_back(utf8::next(text, at));
  return out;
}

}  // namespace

std::string json_quoted(const std::string& text) { return SchemaJson(text).dump(); }

JsonText::Ref JsonText::once(const char* name, Ref (JsonText::*make)()) {
  auto found = rules_.find(name);
  if (found == rules_.end()) {
    found = rules_.emplace(name, g_.add_rule(name)).first;  // first: values are in arrays, which are values
    g_.define(found->second, (this->*make)());
  }
  return g_.call(found->second);
}

JsonText::Ref JsonText::space() { return once("space", &JsonText::make_space); }
JsonText::Ref JsonText::string() { return once("string", &JsonText::make_string); }
JsonText::Ref JsonText::number() { return once("number", &JsonText::make_number); }
JsonText::Ref JsonText::value() { return once("value", &JsonText::make_value); }
JsonText::Ref JsonText::object() { return once("object", &JsonText::make_object); }
JsonText::Ref JsonText::array() { return once("array", &JsonText::make_array); }
JsonText::Ref JsonText::character() { return make_character(); }

JsonText::Ref JsonText::make_space() {
  constexpr std::uint32_t kIndentation = 64;
  const Ref line = g_.sequence({g_.optional(g_.text("\r")), g_.text("\n"),
                                g_.repeat(g_.chars(CharSet({{' ', ' '}, {'\t', '\t'}})), 0, kIndentation)});
  return g_.choice({g_.empty(), g_.text(" "), line});
}

JsonText::Ref JsonText::make_character() {
  const auto digits = [&](std::vector<CharRange> ranges) { return g_.chars(CharSet(std::move(ranges))); };
  const Ref hex = digits({{'0', '9'}, {'a', 'f'}, {'A', 'F'}}), d = digits({{'d', 'd'}, {'D', 'D'}});
  const Ref two = g_.repeat(hex, 2, 2), three = g_.repeat(hex, 3, 3);
  // Surrogates come in pairs: one alone is no character.
  const Ref basic = g_.choice({g_.sequence({digits({{'0', '9'}, {'a', 'c'}, {'e', 'f'}, {'A', 'C'}, {'E', 'F'}}), three}),
                               g_.sequence({d, digits({{'0', '7'}}), two})});
  const Ref pair = g_.sequence(
      {d, digits({{'8', '9'}, {'a', 'b'}, {'A', 'B'}}), two, g_.text("\\u"), d, digits({{'c', 'f'}, {'C', 'F'}}), two});
  const Ref letter =
      digits({{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}});
  const Ref escape =
      g_.sequence({g_.text("\\"), g_.choice({letter, g_.sequence({g_.text("u"), g_.choice({basic, pair})})})});
  return g_.choice({g_.chars(json_escaped().complement()), escape});
}

JsonText::Ref JsonText::characters(const CharSet& set) {
  std::vector<Ref> parts = {g_.chars(set.without(json_escaped()))};
  CharSet left = set.without(json_control().united(json_escaped()).complement());
  for (const auto& [c, letter] : kShortEscapes)
    if (set.contains(static_cast<unsigned char>(c))) {
      parts.push_back(g_.text({'\\', letter}));
      left = left.without(CharSet::one(static_cast<unsigned char>(c)));
    }
  for (const CharRange& r : left.ranges())
    for (char32_t c = r.first; c <= r.last; ++c)  // at most 32
      parts.push_back(g_.text({'\\', 'u', '0', '0', static_cast<char>('0' + c / 16), "0123456789abcdef"[c % 16]}));
  return g_.choice(std::move(parts));
}

JsonText::Ref JsonText::make_string() { return quoted(g_.repeat(character(), 0, kUnbounded)); }

// Bounded, because models that are uncertain may write digits without an end, and so that a double can hold it.
JsonText::Ref JsonText::make_number() {
  const Ref digit = g_.chars(CharSet({{'0', '9'}}));
  const Ref whole = g_.choice({g_.text("0"), g_.sequence({g_.chars(CharSet({{'1', '9'}})), g_.repeat(digit, 0, 18)})});
  const Ref fraction = g_.sequence({g_.text("."), g_.repeat(digit, 1, 16)});
  const Ref power = g_.choice({g_.repeat(digit, 1, 2), g_.sequence({g_.text("1"), g_.repeat(digit, 2, 2)})});  // to 199
  const Ref exponent = g_.sequence(
      {g_.chars(CharSet({{'e', 'e'}, {'E', 'E'}})), g_.optional(g_.chars(CharSet({{'+', '+'}, {'-', '-'}}))), power});
  return g_.sequence({g_.optional(g_.text("-")), whole, g_.optional(fraction), g_.optional(exponent)});
}

JsonText::Ref JsonText::make_value() {
  return g_.choice({object(), array(), string(), number(), g_.text("true"), g_.text("false"), g_.text("null")});
}

JsonText::Ref JsonText::make_object() {
  const Ref pair = member(string(), value());
  const Ref pairs = g_.sequence({pair, g_.repeat(g_.sequence({comma(), pair}), 0, kUnbounded), space()});
  return g_.sequence({g_.text("{"), space(), g_.optional(pairs), g_.text("}")});
}

JsonText::Ref JsonText::make_array() {
  const Ref values = g_.sequence({value(), g_.repeat(g_.sequence({comma(), value()}), 0, kUnbounded), space()});
  return g_.sequence({g_.text("["), space(), g_.optional(values), g_.text("]")});
}

JsonText::Ref JsonText::exactly(const SchemaJson& value) {
  if (!value.is_structured() || value.empty()) return g_.text(value.dump());
  std::vector<Ref> parts;
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (!parts.empty()) parts.push_back(comma());
    parts.push_back(value.is_object() ? member(g_.text(json_quoted(it.key())), exactly(it.value())) : exactly(*it));
  }
  return value.is_object() ? braced("{", g_.sequence(std::move(parts)), "}")
                           : braced("[", g_.sequence(std::move(parts)), "]");
}

JsonText::Ref JsonText::key_but(const std::vector<std::string>& names) {
  std::vector<std::u32string> texts;
  for (const std::string& name : names) texts.push_back(code_points(name));
  std::sort(texts.begin(), texts.end());
  return quoted(key_rest(std::move(texts), 0));
}

// Names that are the same up to `at`: the rest of a key that is none of them. Control characters without a short escape are
// in no key.
JsonText::Ref JsonText::key_rest(std::vector<std::u32string> names, std::size_t at) {
  static const CharSet all = CharSet({{0, 7}, {0xB, 0xB}, {0xE, 0x1F}}).complement();
  const auto any_character = [&] { return characters(all); };
  if (names.empty()) return g_.repeat(any_character(), 0, kUnbounded);
  std::vector<CharRange> taken;
  std::vector<Ref> parts;
  bool is_name = false;
  for (std::size_t i = 0; i < names.size();) {
    if (names[i].size() == at) {
      is_name = true, ++i;
      continue;
    }
    const char32_t c = names[i][at];
    std::vector<std::u32string> same;
    for (; i < names.size() && names[i].size() > at && names[i][at] == c; ++i) same.push_back(names[i]);
    taken.push_back({c, c});
    parts.push_back(g_.sequence({characters(CharSet::one(c)), key_rest(std::move(same), at + 1)}));
  }
  parts.push_back(
      g_.sequence({characters(all.without(CharSet(std::move(taken)))), g_.repeat(any_character(), 0, kUnbounded)}));
  if (!is_name) parts.push_back(g_.empty());
  return g_.choice(std::move(parts));
}

}  // namespace dsmoe::grammar
