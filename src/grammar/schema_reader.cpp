// References, allOf, and the parts of objects and arrays.
#include <algorithm>
#include <charconv>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "grammar/schema_facts.h"

namespace dsmoe::grammar {

namespace {

// A token of a JSON pointer in a URI: %41, then ~1 for a slash and ~0 for a tilde.
std::string unescaped_token(std::string_view token) {
  std::string plain, out;
  for (std::size_t i = 0; i < token.size(); ++i) {
    unsigned value = 0;
    const bool hex = token[i] == '%' && i + 2 < token.size() &&
                     std::from_chars(token.data() + i + 1, token.data() + i + 3, value, 16).ptr == token.data() + i + 3;
    plain += hex ? static_cast<char>(value) : token[i];
    if (hex) i += 2;
  }
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const bool escape = plain[i] == '~' && i + 1 < plain.size() && (plain[i + 1] == '0' || plain[i + 1] == '1');
    out += !escape ? plain[i] : plain[i + 1] == '1' ? '/' : '~';
    i += escape;
  }
  return out;
}

const SchemaJson* listed(const SchemaJson& node) {
  for (const char* key : {"prefixItems", "items"})
    if (const auto it = node.find(key); it != node.end() && it->is_array()) return &*it;
  return nullptr;
}

}  // namespace

std::vector<const void*> Conjunction::key() const {
  if (never) return {};
  std::vector<const void*> out(nodes.begin(), nodes.end());
  std::sort(out.begin(), out.end());
  out.push_back(nullptr);
  for (const Union& u : unions) out.push_back(u.branches);
  return out;
}

SchemaReader::SchemaReader(const SchemaJson& document, std::string_view where) : document_(document), where_(where) {
  places_[&document_] = "#";
}

const SchemaJson* SchemaReader::child(const SchemaJson& node, const std::string& key) {
  const auto it = node.find(key);
  if (it == node.end()) return nullptr;
  if (!places_.contains(&*it)) places_[&*it] = places_[&node] + "/" + key;
  return &*it;
}

const SchemaJson* SchemaReader::child(const SchemaJson& node, std::size_t index) {
  const SchemaJson* element = &node[index];
  if (!places_.contains(element)) places_[element] = places_[&node] + "/" + std::to_string(index);
  return element;
}

const SchemaJson& SchemaReader::target(const SchemaJson& node, const SchemaJson& reference) {
  const std::string text = reference.is_string() ? reference.get<std::string>() : json_read::shown(reference);
  if (!reference.is_string() || !text.starts_with("#") || (text.size() > 1 && text[1] != '/'))
    fail(ErrorCode::kFormat, "{}: '$ref' must point into this schema, as \"#/$defs/name\" does; found {}", place(&node),
         in_quotes(text));
  const SchemaJson* at = &document_;
  for (std::size_t i = 1; at && i < text.size();) {
    const std::size_t end = std::min(text.find('/', i + 1), text.size());
    const std::string token = unescaped_token(std::string_view(text).substr(i + 1, end - i - 1));
    std::size_t index = 0;
    const auto [last, error] = std::from_chars(token.data(), token.data() + token.size(), index);
    const bool number = error == std::errc() && last == token.data() + token.size();
    if (at->is_object())
      at = child(*at, token);
    else
      at = at->is_array() && number && index < at->size() ? child(*at, index) : nullptr;
    i = end;
  }
  if (!at) fail(ErrorCode::kFormat, "{}: nothing is at the '$ref' {}", place(&node), in_quotes(text));
  return *at;
}

void SchemaReader::expand(const SchemaJson& schema, Conjunction& out, std::vector<const SchemaJson*>& open) {
  if (schema.is_boolean()) {
    out.never |= schema == false;
    return;
  }
  if (!schema.is_object())
    fail(ErrorCode::kFormat, "{}: a schema must be an object, true or false; found {}", place(&schema),
         json_read::shown(schema));
  if (std::find(open.begin(), open.end(), &schema) != open.end())
    fail(ErrorCode::kFormat, "{}: the schema refers to itself without anything around it", place(&schema));
  if (++work_ > 1'000'000)
    fail(ErrorCode::kFormat, "{}: the schema is too large: its parts combine in too many ways", place(&schema));
  if (open.size() > 200) fail(ErrorCode::kFormat, "{}: references lead to references too often", place(&schema));
  if (std::find(out.nodes.begin(), out.nodes.end(), &schema) != out.nodes.end()) return;
  out.nodes.push_back(&schema);
  open.push_back(&schema);
  if (const SchemaJson* reference = child(schema, "$ref")) expand(target(schema, *reference), out, open);
  const auto list = [&](const char* key) {
    const SchemaJson* value = child(schema, key);
    if (value && (!value->is_array() || value->empty()))
      fail(ErrorCode::kFormat, "{}: '{}' must be an array of schemas, found {}", place(&schema), key,
           json_read::shown(*value));
    return value;
  };
  if (const SchemaJson* all = list("allOf"))
    for (std::size_t i = 0; i < all->size(); ++i) expand(*child(*all, i), out, open);
  for (const bool exactly_one : {false, true})
    if (const SchemaJson* branches = list(exactly_one ? "oneOf" : "anyOf")) {
      for (std::size_t i = 0; i < branches->size(); ++i) child(*branches, i);  // their places
      out.unions.push_back({branches, exactly_one, open});
    }
  open.pop_back();
}

Conjunction SchemaReader::conjunction(const std::vector<const SchemaJson*>& schemas) {
  Conjunction out;
  std::vector<const SchemaJson*> open;
  for (const SchemaJson* schema : schemas) expand(*schema, out, open);
  return out;
}

Conjunction SchemaReader::with_branch(const Conjunction& all, const SchemaJson& branch) {
  Conjunction out = all;
  std::vector<const SchemaJson*> open = std::move(out.unions.back().inside);
  out.unions.pop_back();
  expand(branch, out, open);
  return out;
}

std::vector<const SchemaJson*> SchemaReader::property(const SchemaFacts& facts, const std::string& name) {
  std::vector<const SchemaJson*> out;
  for (const SchemaJson* node : facts.objects) {
    const SchemaJson* properties = child(*node, "properties");
    const SchemaJson* schema = properties ? child(*properties, name) : nullptr;
    if (!schema) schema = child(*node, "additionalProperties");
    if (schema) out.push_back(schema);
  }
  return out;
}

std::vector<const SchemaJson*> SchemaReader::additional(const SchemaFacts& facts) {
  std::vector<const SchemaJson*> out;
  for (const SchemaJson* node : facts.objects)
    if (const SchemaJson* schema = child(*node, "additionalProperties")) out.push_back(schema);
  return out;
}

std::vector<std::string> SchemaReader::names(const SchemaFacts& facts) {
  std::vector<std::string> out;
  std::unordered_map<std::string, bool> seen;
  for (const SchemaJson* node : facts.objects)
    if (const SchemaJson* properties = child(*node, "properties"))
      for (auto it = properties->begin(); it != properties->end(); ++it)
        if (seen.try_emplace(it.key(), true).second) out.push_back(it.key());
  for (const std::string& name : facts.required)
    if (seen.try_emplace(name, true).second) out.push_back(name);
  return out;
}

bool SchemaReader::has_more_properties(const SchemaFacts& facts) {
  const std::vector<const SchemaJson*> schemas = additional(facts);
  const bool forbidden =
      std::any_of(schemas.begin(), schemas.end(), [](const SchemaJson* s) { return s->is_boolean() && *s == false; });
  return !forbidden && (!schemas.empty() || names(facts).empty());
}

std::vector<const SchemaJson*> SchemaReader::element(const SchemaFacts& facts, std::size_t i) {
  std::vector<const SchemaJson*> out;
  for (const SchemaJson* node : facts.arrays) {
    const SchemaJson* list = listed(*node);
    if (list) child(*node, node->contains("prefixItems") ? "prefixItems" : "items");  // its place
    if (list && i < list->size()) {
      out.push_back(child(*list, i));
      continue;
    }
    const char* key = list && !node->contains("prefixItems") ? "additionalItems" : "items";
    if (const SchemaJson* rest = child(*node, key)) out.push_back(rest);
  }
  return out;
}

std::size_t SchemaReader::listed_elements(const SchemaFacts& facts) {
  std::size_t most = 0;
  for (const SchemaJson* node : facts.arrays)
    if (const SchemaJson* list = listed(*node)) most = std::max(most, list->size());
  return most;
}

bool SchemaReader::has_more_elements(const SchemaFacts& facts) {
  const std::size_t most = listed_elements(facts);
  const std::vector<const SchemaJson*> rest = element(facts, most);
  const bool forbidden =
      std::any_of(rest.begin(), rest.end(), [](const SchemaJson* s) { return s->is_boolean() && *s == false; });
  return !forbidden && (!rest.empty() || most == 0);
}

bool SchemaReader::apart(const Conjunction& a, const Conjunction& b, int depth) {
  if (a.never || b.never) return true;
  const SchemaFacts fa = facts(a), fb = facts(b);
  const unsigned common = fa.types & fb.types;
  if (common == 0) return true;
  const auto none_in = [&](const SchemaFacts& of, const SchemaFacts& other) {
    return of.values && std::none_of(of.values->begin(), of.values->end(), [&](const SchemaJson& v) {
             if (!other.values) return other.patterns.empty() ? has_value(other, v, document_) : true;
             return std::find(other.values->begin(), other.values->end(), v) != other.values->end();
           });
  };
  const bool simple_values = fa.arrays.empty() && fb.arrays.empty() && fa.objects.empty() && fb.objects.empty();
  if (simple_values && (none_in(fa, fb) || none_in(fb, fa))) return true;
  if (depth == 0) return false;
  if (common == kTypeObject)
    for (const std::string& name : fa.required) {
      const auto forbids = [&](const SchemaJson* node) {
        const auto more = node->find("additionalProperties"), listed_ones = node->find("properties");
        return more != node->end() && *more == false && (listed_ones == node->end() || !listed_ones->contains(name));
      };
      if (std::any_of(fb.objects.begin(), fb.objects.end(), forbids)) return true;
      if (fb.requires_property(name) && apart(conjunction(property(fa, name)), conjunction(property(fb, name)), depth - 1))
        return true;
    }
  // Every branch of a union apart from the other side.
  const auto branches_apart = [&](const Conjunction& of, const Conjunction& other) {
    if (of.unions.empty()) return false;
    const SchemaJson& list = *of.unions.back().branches;
    return std::all_of(list.begin(), list.end(),
                       [&](const SchemaJson& branch) { return apart(with_branch(of, branch), other, depth - 1); });
  };
  return branches_apart(a, b) || branches_apart(b, a);
}

}  // namespace dsmoe::grammar
