#include "grammar/schema_facts.h"

#include <algorithm>
#include <array>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "grammar/json_pattern.h"
#include "grammar/json_schema.h"

namespace dsmoe::grammar {

namespace {

constexpr std::string_view kUsed[] = {
    "type",    "enum",        "const",    "properties", "required",         "additionalProperties",
    "items",   "prefixItems", "minItems", "maxItems",   "minLength",        "maxLength",
    "pattern", "format",      "minimum",  "maximum",    "exclusiveMinimum", "exclusiveMaximum",
    "anyOf",   "oneOf",       "allOf",    "$ref",       "additionalItems"};
// These say nothing about what is valid.
constexpr std::string_view kNotes[] = {
    "title",      "description", "default",       "examples",        "example",         "$schema",
    "$id",        "$comment",    "$defs",         "$anchor",         "readOnly",        "writeOnly",
    "deprecated", "definitions", "discriminator", "contentEncoding", "contentMediaType"};

template <std::size_t N>
bool is_one_of(const std::string_view (&list)[N], std::string_view key) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

// Keywords that are not supported but forbid nothing with this value.
bool forbids_nothing(const std::string& key, const SchemaJson& value) {
  if (key == "uniqueItems") return value == false;
  if (key == "minProperties" || key == "minContains") return value == 0;
  if (key == "patternProperties" || key == "dependentRequired" || key == "dependentSchemas")
    return value.is_object() && value.empty();
  return (key == "unevaluatedProperties" || key == "unevaluatedItems" || key == "propertyNames") && value == true;
}

unsigned type_bits(const SchemaJson& name) {
  static const std::unordered_map<std::string, unsigned> types = {
      {"null", kTypeNull},     {"boolean", kTypeBoolean}, {"integer", kTypeInteger}, {"number", kTypeInteger | kTypeNumber},
      {"string", kTypeString}, {"array", kTypeArray},     {"object", kTypeObject}};
  const auto found = name.is_string() ? types.find(name.get<std::string>()) : types.end();
  return found == types.end() ? 0 : found->second;
}

unsigned type_of(const SchemaJson& value) {
  if (value.is_null()) return kTypeNull;
  if (value.is_boolean()) return kTypeBoolean;
  if (value.is_string()) return kTypeString;
  if (value.is_array()) return kTypeArray;
  if (value.is_object()) return kTypeObject;
  if (value.is_number_integer()) return kTypeInteger;
  const std::optional<Decimal> d = Decimal::from(value);
  return d && d->fraction.empty() ? kTypeInteger : kTypeNumber;
}

}  // namespace

template <class... Args>
void SchemaReader::refuse(const SchemaJson& node, fmt::format_string<Args...> format, Args&&... args) const {
  fail(ErrorCode::kFormat, "{}: {}", place(&node), fmt::format(format, std::forward<Args>(args)...));
}

std::string SchemaReader::place(const SchemaJson* node) const {
  const auto found = places_.find(node);
  return fmt::format("{}: {}", where_, found == places_.end() ? "#" : printable(found->second));
}

bool SchemaFacts::requires_property(const std::string& name) const {
  return std::find(required.begin(), required.end(), name) != required.end();
}

void SchemaReader::check_keywords(const SchemaJson& node) {
  for (auto it = node.begin(); it != node.end(); ++it) {
    const std::string& key = it.key();
    if (is_one_of(kUsed, key) || is_one_of(kNotes, key) || key.starts_with("x-") || forbids_nothing(key, it.value()))
      continue;
    refuse(node, "the keyword {} is not supported", in_quotes(key));
  }
}

SchemaFacts SchemaReader::facts(const Conjunction& all) {
  SchemaFacts out;
  unsigned implied = 0;
  bool typed = false;
  for (const SchemaJson* node : all.nodes) {
    if (++work_ > 1'000'000) refuse(*node, "the schema is too large: its parts combine in too many ways");
    read_node(*node, out, implied, typed);
  }
  if (all.never) out.types = 0;
  // Keywords for strings alone let any number pass; who writes them means strings.
  if (!typed && !out.values && implied != 0) out.types &= implied;
  if (out.values) filter_values(all, out);
  return out;
}

void SchemaReader::read_node(const SchemaJson& node, SchemaFacts& out, unsigned& implied, bool& typed) {
  check_keywords(node);
  if (const SchemaJson* type = child(node, "type")) {
    unsigned bits = 0;
    const bool is_list = type->is_array() && !type->empty();
    for (const SchemaJson& name : is_list ? *type : SchemaJson::array({*type})) {
      if (type_bits(name) == 0) refuse(node, "unknown type {}", json_read::shown(name));
      bits |= type_bits(name);
    }
    out.types &= bits;
    typed = true;
  }
  const auto has = [&](std::initializer_list<const char*> keys) {
    return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return node.contains(key); });
  };
  read_values(node, out);
  if (has({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})) implied |= kTypeNumber | kTypeInteger;
  read_bound(node, "minimum", false, true, out);
  read_bound(node, "exclusiveMinimum", true, true, out);
  read_bound(node, "maximum", false, false, out);
  read_bound(node, "exclusiveMaximum", true, false, out);
  const std::size_t patterns = out.patterns.size();
  read_string(node, out);
  if (has({"minLength", "maxLength"}) || out.patterns.size() > patterns) implied |= kTypeString;
  if (has({"items", "prefixItems", "minItems", "maxItems", "additionalItems"})) {
    implied |= kTypeArray;
    out.arrays.push_back(&node);
    out.min_items = std::max(out.min_items, count(node, "minItems", 0));
    out.max_items = std::min(out.max_items, count(node, "maxItems", kUnbounded));
  }
  if (has({"properties", "required", "additionalProperties"})) {
    implied |= kTypeObject;
    out.objects.push_back(&node);
    read_required(node, out);
  }
}

void SchemaReader::read_values(const SchemaJson& node, SchemaFacts& out) {
  const auto both = [&](const std::vector<SchemaJson>& values) {
    if (!out.values)
      out.values = values;
    else
      std::erase_if(*out.values,
                    [&](const SchemaJson& v) { return std::find(values.begin(), values.end(), v) == values.end(); });
  };
  if (const auto it = node.find("const"); it != node.end()) both({*it});
  if (const auto it = node.find("enum"); it != node.end()) {
    if (!it->is_array()) refuse(node, "'enum' must be an array, found {}", json_read::shown(*it));
    both({it->begin(), it->end()});
  }
}

void SchemaReader::read_bound(const SchemaJson& node, const char* key, bool exclusive, bool is_min, SchemaFacts& out) {
  const auto it = node.find(key);
  if (it == node.end()) return;
  if (!it->is_number()) refuse(node, "'{}' must be a number, found {}", key, json_read::shown(*it));
  const std::optional<Decimal> value = Decimal::from(*it);
  if (!value) refuse(node, "'{}' has too many digits: {}", key, json_read::shown(*it));
  const NumberBound bound{*value, exclusive};
  is_min ? out.bounds.add_min(bound) : out.bounds.add_max(bound);
}

void SchemaReader::read_string(const SchemaJson& node, SchemaFacts& out) {
  out.min_length = std::max(out.min_length, count(node, "minLength", 0));
  out.max_length = std::min(out.max_length, count(node, "maxLength", kUnbounded));
  if (const auto it = node.find("pattern"); it != node.end()) {
    if (!it->is_string()) refuse(node, "'pattern' must be a string, found {}", json_read::shown(*it));
    out.patterns.emplace_back(it->get<std::string>(), place(&node));
  }
  const auto it = node.find("format");
  if (it == node.end()) return;
  const std::string format = it->is_string() ? it->get<std::string>() : "";
  if (const std::optional<std::string_view> pattern = pattern_of_format(format)) {
    out.patterns.emplace_back(*pattern, place(&node));
  } else if (format == "int32") {
    out.bounds.add_min({*Decimal::from(-2147483648LL), false});
    out.bounds.add_max({*Decimal::from(2147483647LL), false});
  } else if (format != "int64" && format != "float" && format != "double") {
    refuse(node, "the format {} is not supported; date, time, date-time, uuid, ipv4 and email are", json_read::shown(*it));
  }
}

void SchemaReader::read_required(const SchemaJson& node, SchemaFacts& out) {
  if (const auto it = node.find("properties"); it != node.end() && !it->is_object())
    refuse(node, "'properties' must be an object, found {}", json_read::shown(*it));
  const auto it = node.find("required");
  if (it == node.end()) return;
  const std::optional<std::vector<std::string>> names = json_read::try_as<std::vector<std::string>>(*it);
  if (!names) refuse(node, "'required' must be an array of strings, found {}", json_read::shown(*it));
  for (const std::string& name : *names)
    if (!out.requires_property(name)) out.required.push_back(name);
}

std::uint32_t SchemaReader::count(const SchemaJson& node, const char* key, std::uint32_t otherwise) {
  const auto it = node.find(key);
  if (it == node.end()) return otherwise;
  const bool whole = it->is_number_unsigned() || (it->is_number_integer() && it->get<std::int64_t>() >= 0);
  if (!whole) refuse(node, "'{}' must be a whole number of at least 0, found {}", key, json_read::shown(*it));
  const std::uint64_t value = it->get<std::uint64_t>();
  if (value > kMaxSchemaRepeat) refuse(node, "'{}' is {}, at most {} is supported", key, value, kMaxSchemaRepeat);
  return static_cast<std::uint32_t>(value);
}

// Keywords beside enum and const: the simple ones are checked, the others refused.
bool SchemaReader::has_value(const SchemaFacts& f, const SchemaJson& value, const SchemaJson& node) {
  const unsigned type = type_of(value);
  if ((f.types & type) == 0) return false;
  if (value.is_number()) {
    const std::optional<Decimal> d = Decimal::from(value);
    if (!d && (f.bounds.min || f.bounds.max)) refuse(node, "a value of 'enum' has too many digits to be compared");
    return !d || f.bounds.contains(*d);
  }
  if (value.is_string()) {
    if (!f.patterns.empty()) refuse(node, "'pattern' or 'format' beside 'enum' or 'const' is not supported");
    const std::string& text = value.get_ref<const std::string&>();
    const auto length = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    return length >= f.min_length && length <= f.max_length;
  }
  if ((value.is_array() && !f.arrays.empty()) || (value.is_object() && !f.objects.empty()))
    refuse(node, "keywords for arrays and objects beside 'enum' or 'const' are not supported");
  return true;
}

void SchemaReader::filter_values(const Conjunction& all, SchemaFacts& f) {
  const SchemaJson& node = *all.nodes[0];
  std::erase_if(*f.values, [&](const SchemaJson& value) { return !has_value(f, value, node); });
}

}  // namespace dsmoe::grammar
