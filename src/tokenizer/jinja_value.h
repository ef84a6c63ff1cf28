// What expressions of a template compute with: Python's values, as far as templates need them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace dsmoe::jinja {

struct Undefined {};
struct None {};
class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in the order of insertion, keys are unique
struct Namespace {
  Dict members;
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
  Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  Value(List value);
  Value(Dict value);
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}
  Value(const char*) = delete;  // would become a bool

  bool is_undefined() const { return holds<Undefined>(); }
  bool is_none() const { return holds<None>(); }
  bool is_bool() const { return holds<bool>(); }
  bool is_integer() const { return holds<std::int64_t>(); }
  const std::string* string() const { return shared<const std::string>(); }
  const List* list() const { return shared<const List>(); }
  const Dict* dict() const { return shared<const Dict>(); }
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

  std::variant<Undefined, None, bool, std::int64_t, std::shared_ptr<const std::string>, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>>
      data_;
  int depth_ = 0;  // of containers
};

const Value* find(const Dict& dict, std::string_view key);
void assign(Dict& dict, const std::string& key, Value value);

}  // namespace dsmoe::jinja
