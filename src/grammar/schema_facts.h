// What a JSON schema says, read keyword by keyword. A value may have to satisfy several schemas at once (allOf, $ref beside
// other keywords, the same property in both): such a conjunction is a list of the objects in the document.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "core/fail.h"
#include "grammar/json_numbers.h"
#include "grammar/json_text.h"

namespace dsmoe::grammar {

enum SchemaType : unsigned {
  kTypeNull = 1,
  kTypeBoolean = 2,
  kTypeInteger = 4,
  kTypeNumber = 8,  // not whole ones alone; the type "number" has both bits
  kTypeString = 16,
  kTypeArray = 32,
  kTypeObject = 64,
  kAllTypes = 127,
};

// Objects whose own keywords count, those that combine schemas aside; and arrays of which one must hold.
struct Conjunction {
  std::vector<const SchemaJson*> nodes;
  struct Union {
    const SchemaJson* branches = nullptr;
    bool exactly_one = false;               // oneOf
    std::vector<const SchemaJson*> inside;  // the schemas that it stands in: one that leads back to them says nothing
  };
  std::vector<Union> unions;
  bool never = false;  // the schema false

  std::vector<const void*> key() const;  // the same for the same conjunction
};

struct SchemaFacts {
  unsigned types = kAllTypes;
  std::optional<std::vector<SchemaJson>> values;  // enum, const
  NumberBounds bounds;
  std::uint32_t min_length = 0, max_length = kUnbounded;
  std::vector<std::pair<std::string, std::string>> patterns;  // the pattern, where
  std::vector<const SchemaJson*> arrays, objects;             // nodes with keywords for them
  std::uint32_t min_items = 0, max_items = kUnbounded;
  std::vector<std::string> required;

  bool requires_property(const std::string& name) const;
};

class SchemaReader {
 public:
  // `where` begins messages.
  SchemaReader(const SchemaJson& document, std::string_view where);

  // All that must hold where these schemas do: references followed, allOf taken apart.
  Conjunction conjunction(const std::vector<const SchemaJson*>& schemas);
  // One branch in the place of the union, which is the last.
  Conjunction with_branch(const Conjunction& all, const SchemaJson& branch);
  SchemaFacts facts(const Conjunction& all);

  // The schemas of a property, of the others, of element i of an array and of those behind the listed ones.
  std::vector<const SchemaJson*> property(const SchemaFacts& facts, const std::string& name);
  std::vector<const SchemaJson*> additional(const SchemaFacts& facts);
  std::vector<const SchemaJson*> element(const SchemaFacts& facts, std::size_t i);

  // Of objects: the names in order. A schema that lists properties and says nothing of others does not let a model invent
  // any; so with listed elements.
  std::vector<std::string> names(const SchemaFacts& facts);
  bool has_more_properties(const SchemaFacts& facts);
  std::size_t listed_elements(const SchemaFacts& facts);
  bool has_more_elements(const SchemaFacts& facts);

  // Whether no value satisfies both, as far as can be seen from types, values, bounds and required properties.
  bool apart(const Conjunction& a, const Conjunction& b, int depth = 3);

  std::string place(const SchemaJson* node) const;  // "schema: #/properties/a"

 private:
  void expand(const SchemaJson& schema, Conjunction& out, std::vector<const SchemaJson*>& open);
  const SchemaJson& target(const SchemaJson& node, const SchemaJson& reference);
  const SchemaJson* child(const SchemaJson& node, const std::string& key);  // remembers its place
  const SchemaJson* child(const SchemaJson& node, std::size_t index);
  void check_keywords(const SchemaJson& node);
  void read_node(const SchemaJson& node, SchemaFacts& facts, unsigned& implied, bool& typed);
  void read_values(const SchemaJson& node, SchemaFacts& facts);
  void read_bound(const SchemaJson& node, const char* key, bool exclusive, bool is_min, SchemaFacts& facts);
  void read_string(const SchemaJson& node, SchemaFacts& facts);
  void read_required(const SchemaJson& node, SchemaFacts& facts);
  std::uint32_t count(const SchemaJson& node, const char* key, std::uint32_t otherwise);
  bool has_value(const SchemaFacts& facts, const SchemaJson& value, const SchemaJson& node);
  void filter_values(const Conjunction& all, SchemaFacts& facts);

  template <class... Args>
  [[noreturn]] void refuse(const SchemaJson& node, fmt::format_string<Args...> format, Args&&... args) const;

  const SchemaJson& document_;
  std::string where_;
  std::unordered_map<const SchemaJson*, std::string> places_;
  std::size_t work_ = 0;
};

}  // namespace dsmoe::grammar
