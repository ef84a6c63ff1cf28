// What expressions of a template compute with: Python's values, as far as templates need them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/marked_text.h"

namespace dsmoe::jinja {

using Text = MarkedText;  // of the template's own writing, where it is made of plain bytes
struct Undefined {};
struct None {};
class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in the order of insertion, keys are unique
struct Namespace {
  Dict members;
};

// A dictionary of a message's JSON: its keys are the message's words, too.
struct ForeignDict {
  Dict entries;
};

// Cheap to copy: strings, lists and dictionaries are shared and never change. A namespace does, and therefore is
// refused in a container: it could hold itself. Containers nest to a bounded depth, since they are freed and compared
// recursively.
class Value {
 public:
  Value() = default;
  Value(None) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(std::int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(Text value) : data_(std::make_shared<const Text>(std::move(value))) {}
  Value(List value);
  Value(Dict value);
  Value(ForeignDict value) : Value(std::move(value.entries)) { foreign_keys_ = true; }
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}
  Value(const char*) = delete;  // would become a bool
  Value(std::string) = delete;  // Text says who wrote it

  bool is_undefined() const { return holds<Undefined>(); }
  bool is_none() const { return holds<None>(); }
  bool is_bool() const { return holds<bool>(); }
  bool is_integer() const { return holds<std::int64_t>(); }
  const double* real() const { return std::get_if<double>(&data_); }  // computing with these is not supported
  const Text* text() const { return shared<const Text>(); }
  const std::string* string() const { return text() ? &text()->bytes() : nullptr; }
  const List* list() const { return shared<const List>(); }
  const Dict* dict() const { return shared<const Dict>(); }
  // A key of this dictionary as text.
  Text key(const std::string& name) const { return foreign_keys_ ? Text::of_message(name) : Text(name); }
  Namespace* name_space() const { return shared<Namespace>(); }
  // True and False count as 1 and 0, as in Python.
  const std::int64_t* number() const;

  bool truth() const;
  const char* type_name() const;  // "string", "list", ...
  friend bool operator==(const Value& a, const Value& b);

 private:
  void nest(const Value& element);
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(data_);
  }
  template <class T>
  T* shared() const {
    const auto* pointer = std::get_if<std::shared_ptr<T>>(&data_);
    return pointer ? pointer->get() : nullptr;
  }

  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>>
      data_;
  bool foreign_keys_ = false;
  int depth_ = 0;  // of containers
};

// A value of JSON text that somebody sent: its strings and keys are a message's.
Value value_of_json(std::string_view text, std::string_view where);

const Value* find(const Dict& dict, std::string_view key);
void assign(Dict& dict, const std::string& key, Value value);

}  // namespace dsmoe::jinja
