#include "tokenizer/jinja_value.h"

#include <algorithm>

#include "core/fail.h"
#include "core/json_read.h"

namespace dsmoe::jinja {

void Value::nest(const Value& element) {
  constexpr int kMaxNesting = 50;
  if (element.name_space()) fail(ErrorCode::kUnsupported, "chat template: a namespace in a list or dict is not supported");
  depth_ = std::max(depth_, element.depth_ + 1);
  if (depth_ > kMaxNesting)
    fail(ErrorCode::kUnsupported, "chat template: lists more than {} deep are not supported", kMaxNesting);
}

Value::Value(List value) {
  for (const Value& element : value) nest(element);
  data_ = std::make_shared<const List>(std::move(value));
}

Value::Value(Dict value) {
  for (const auto& entry : value) nest(entry.second);
  data_ = std::make_shared<const Dict>(std::move(value));
}

const std::int64_t* Value::number() const {
  static constexpr std::int64_t kNumbers[] = {0, 1};
  if (const bool* flag = std::get_if<bool>(&data_)) return &kNumbers[*flag ? 1 : 0];
  return std::get_if<std::int64_t>(&data_);
}

bool Value::truth() const {
  if (const auto* n = number()) return *n != 0;
  if (real()) return *real() != 0;
  if (const auto* s = string()) return !s->empty();
  if (const auto* l = list()) return !l->empty();
  if (const auto* d = dict()) return !d->empty();
  return name_space() != nullptr;
}

const char* Value::type_name() const {
  constexpr const char* kNames[] = {"undefined", "none", "bool", "integer", "float", "string", "list", "dict", "namespace"};
  return kNames[data_.index()];
}

bool operator==(const Value& a, const Value& b) {
  if (a.number() && b.number()) return *a.number() == *b.number();
  if ((a.real() || a.number()) && (b.real() || b.number())) {
    const auto as_double = [](const Value& v) { return v.real() ? *v.real() : static_cast<double>(*v.number()); };
    return as_double(a) == as_double(b);
  }
  if (a.data_.index() != b.data_.index()) return false;
  if (a.string()) return *a.string() == *b.string();
  if (a.list()) return *a.list() == *b.list();
  if (a.dict()) {
    if (a.dict()->size() != b.dict()->size()) return false;
    for (const auto& [key, value] : *a.dict()) {
      const Value* other = find(*b.dict(), key);
      if (!other || !(*other == value)) return false;
    }
    return true;
  }
  return a.name_space() == b.name_space();  // undefined and none: both null
}

namespace {

Value value_of(const json_read::OrderedJson& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (const auto whole = json_read::try_as<std::int64_t>(json)) return *whole;
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return Text::of_message(json.get_ref<const std::string&>());
  if (json.is_array()) {
    List list;
    for (const auto& item : json) list.push_back(value_of(item));
    return list;
  }
  ForeignDict dict;
  for (const auto& [key, item] : json.items()) dict.entries.emplace_back(key, value_of(item));
  return dict;
}

}  // namespace

Value value_of_json(std::string_view text, std::string_view where) {
  return value_of(json_read::parse<json_read::OrderedJson>(text, where));
}

const Value* find(const Dict& dict, std::string_view key) {
  for (const auto& entry : dict)
    if (entry.first == key) return &entry.second;
  return nullptr;
}

void assign(Dict& dict, const std::string& key, Value value) {
  for (auto& entry : dict) {
    if (entry.first != key) continue;
    entry.second = std::move(value);
    return;
  }
  dict.emplace_back(key, std::move(value));
}

}  // namespace dsmoe::jinja
