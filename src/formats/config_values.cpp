#include "formats/config_values.h"

#include <algorithm>
#include <limits>

#include "core/fail.h"

namespace dsmoe {

namespace {

template <class T>
void read_optional(const char* name, const json_read::OrderedJson& v, std::optional<T>& out) {
  if (v.is_null()) return out.reset();
  read_value(name, v, out.emplace());
}

}  // namespace

void wrong_type(const char* field, const json_read::OrderedJson& value, const char* expected) {
  fail(ErrorCode::kFormat, "{} is {}; expected {}", field, json_read::shown(value), expected);
}

void read_value(const char* name, const json_read::OrderedJson& v, Index& out) {
  if (!v.is_number_integer()) wrong_type(name, v, "a whole number");
  if (v.is_number_unsigned() && v.get<std::uint64_t>() > std::numeric_limits<Index>::max())
    wrong_type(name, v, "a number of at most 63 bits");
  out = v.get<Index>();
}

void read_value(const char* name, const json_read::OrderedJson& v, std::optional<Index>& out) {
  read_optional(name, v, out);
}

void read_value(const char* name, const json_read::OrderedJson& v, double& out) {
  if (!v.is_number()) wrong_type(name, v, "a number");
  out = v.get<double>();
}

void read_value(const char* name, const json_read::OrderedJson& v, std::optional<double>& out) {
  read_optional(name, v, out);
}

void read_value(const char* name, const json_read::OrderedJson& v, bool& out) {
  if (!v.is_boolean() && !v.is_null()) wrong_type(name, v, "true or false");
  out = v.is_boolean() && v.get<bool>();
}

const json_read::OrderedJson& same_in_all_layers(const char* name, const json_read::OrderedJson& v) {
  if (!v.is_array()) return v;
  if (v.empty()) wrong_type(name, v, "a number, or one per layer");
  for (const auto& layer : v)
    if (layer != v.front())
      fail(ErrorCode::kUnsupported,
           "{} is {} in one layer and {} in another; only the same number in all layers is supported", name,
           json_read::shown(v.front()), json_read::shown(layer));
  return v.front();
}

}  // namespace dsmoe
