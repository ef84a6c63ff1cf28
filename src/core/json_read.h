// JSON from files: one strict reader for every file, whoever wrote it, and access that checks types and names the place.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/fail.h"

namespace dsmoe::json_read {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps the order of the keys, for files that are written back

inline constexpr int kMaxDepth = 100;                   // walks over the tree recurse
inline constexpr std::size_t kMaxBytes = 100'000'000;   // the largest tokenizer.json in use has 35 MB
inline constexpr std::size_t kMaxOrderedKeys = 10'000;  // keeping the order makes each key a linear search

// Refuses what a lenient reader passes over or chooses about in silence: a key twice in one object, text after the value,
// zero bytes, text that is not UTF-8, NaN, infinite and too large numbers, and more than the limits above. `where` (a file,
// or file:line) begins every message. J is Json or OrderedJson.
template <class J = Json>
J parse(std::string_view text, std::string_view where);

// The same for texts that must be an object.
template <class J = Json>
J parse_object(std::string_view text, std::string_view where);

// For a reader that builds no tree: it gets the parser's events, with the same strictness but for keys that stand twice,
// which it must see to.
class Events : public nlohmann::json_sax<Json> {
 public:
  Events(std::string_view text, std::string_view where) : text_(text), where_(where) {}
  void run();

  bool binary(binary_t&) final { return false; }  // there is none in text
  bool parse_error(std::size_t bytes, const std::string& last, const nlohmann::detail::exception& error) final;

 protected:
  std::string_view where() const { return where_; }
  std::string position() const { return position_of(read_); }  // "line 3, column 7" of what was read last

 private:
  std::string position_of(std::size_t bytes) const;

  std::string_view text_, where_;
  std::size_t read_ = 0;  // bytes
};

// A value in a message: as it would stand in a file, cut after 60 bytes.
std::string shown(const Json& value);
std::string shown(const OrderedJson& value);

// The member, or nothing when it is absent or null.
template <class J>
const J* find(const J& object, const std::string& key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

template <class J>
const J& member(const J& object, const std::string& key, std::string_view where) {
  if (!object.is_object())
    fail(ErrorCode::kFormat, "{}: expected an object with '{}', found {}", where, key, shown(object));
  const J* value = find(object, key);
  if (!value) fail(ErrorCode::kFormat, "{}: '{}' is missing", where, key);
  return *value;
}

template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;

// How messages name what a T is read from.
template <class T>
std::string expected() {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_unsigned_v<T>)
    return "a whole number of at least 0";
  else if constexpr (std::is_integral_v<T>)
    return "a whole number";
  else if constexpr (std::is_floating_point_v<T>)
    return "a number";
  else if constexpr (std::is_same_v<T, std::string>)
    return "a string";
  else if constexpr (kIsVector<T>)
    return "an array, each element " + expected<typename T::value_type>();
  else
    return fmt::format("a pair [{}, {}]", expected<typename T::first_type>(), expected<typename T::second_type>());
}

// Reads bool, numbers, strings, pairs and vectors of them. False, with `out` in any state, where the value is none or does
// not fit: nothing is converted or rounded, but whole numbers are numbers.
template <class T, class J>
bool read(const J& value, T& out) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) return false;
    out = value.template get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!value.is_number_integer()) return false;
    const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.template get<std::uint64_t>())
                                                 : std::in_range<T>(value.template get<std::int64_t>());
    if (!fits) return false;
    out = value.template get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!value.is_number()) return false;
    out = value.template get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) return false;
    out = value.template get_ref<const std::string&>();
  } else if constexpr (kIsVector<T>) {
    if (!value.is_array()) return false;
    out.clear();
    for (const J& element : value)
      if (!read(element, out.emplace_back())) return false;
  } else {
    return value.is_array() && value.size() == 2 && read(value[0], out.first) && read(value[1], out.second);
  }
  return true;
}

template <class T, class J>
std::optional<T> try_as(const J& value) {
  T out{};
  return read(value, out) ? std::optional<T>(std::move(out)) : std::nullopt;
}

template <class T, class J>
T as(const J& value, std::string_view what, std::string_view where) {
  std::optional<T> out = try_as<T>(value);
  if (!out) fail(ErrorCode::kFormat, "{}: '{}' must be {}, found {}", where, what, expected<T>(), shown(value));
  return std::move(*out);
}

template <class T, class J>
T get(const J& object, const std::string& key, std::string_view where) {
  return as<T>(member(object, key, where), key, where);
}

// For members that may be absent or null.
template <class T, class J>
T get_or(const J& object, const std::string& key, T otherwise, std::string_view where) {
  const J* value = find(object, key);
  return value ? as<T>(*value, key, where) : otherwise;
}

template <class J>
const J& array(const J& object, const std::string& key, std::string_view where) {
  const J& value = member(object, key, where);
  if (!value.is_array()) fail(ErrorCode::kFormat, "{}: '{}' must be an array, found {}", where, key, shown(value));
  return value;
}

template <class J>
const J& object(const J& parent, const std::string& key, std::string_view where) {
  const J& value = member(parent, key, where);
  if (!value.is_object()) fail(ErrorCode::kFormat, "{}: '{}' must be an object, found {}", where, key, shown(value));
  return value;
}

}  // namespace dsmoe::json_read
