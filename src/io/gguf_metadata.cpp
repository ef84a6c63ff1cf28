#include "io/gguf_metadata.h"

#include <cstring>
#include <limits>
#include <optional>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe::io {

namespace {

constexpr std::uint32_t kTypes = 13;
constexpr int kMaxDepth = 4;  // of arrays in arrays; real files have none

std::size_t fixed_size(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kString:
    case GgufType::kArray: return 0;
  }
  fail(ErrorCode::kFormat, "unknown metadata type {}", static_cast<std::uint32_t>(type));
}

template <class T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
void store(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
GgufValue scalar(GgufType type, T value) {
  GgufValue v{type, {}};
  store(v.bytes, value);
  return v;
}

// An integer of any type; none for other types and for numbers over 63 bits.
std::optional<std::int64_t> load_integer(GgufType type, const char* at) {
  switch (type) {
    case GgufType::kU8: return load<std::uint8_t>(at);
    case GgufType::kI8: return load<std::int8_t>(at);
    case GgufType::kU16: return load<std::uint16_t>(at);
    case GgufType::kI16: return load<std::int16_t>(at);
    case GgufType::kU32: return load<std::uint32_t>(at);
    case GgufType::kI32: return load<std::int32_t>(at);
    case GgufType::kI64: return load<std::int64_t>(at);
    case GgufType::kU64: {
      const auto value = load<std::uint64_t>(at);
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default: return std::nullopt;
  }
}

// What follows an array's type in the file: the elements' type and number, then the elements.
struct ArrayHead {
  GgufType type;
  std::uint64_t count;
  const char* elements;
};
constexpr std::size_t kArrayHeadBytes = 4 + 8;

ArrayHead array_head(const GgufValue& value) {
  const char* at = value.bytes.data();
  return {load<GgufType>(at), load<std::uint64_t>(at + 4), at + kArrayHeadBytes};
}

GgufValue array(GgufType type, std::uint64_t count) {
  GgufValue v{GgufType::kArray, {}};
  store(v.bytes, type);
  store(v.bytes, count);
  return v;
}

void append_string(std::string& out, std::string_view text) {
  store<std::uint64_t>(out, text.size());
  out += text;
}

std::size_t value_size(GgufType type, std::span<const std::byte> bytes, std::string_view where, int depth) {
  const auto need = [&](std::uint64_t n, const char* what) {
    if (n > bytes.size())
      fail(ErrorCode::kFormat, "{}: {} of {} bytes where {} are left; is the file truncated?", where, what, n,
           bytes.size());
  };
  const char* at = reinterpret_cast<const char*>(bytes.data());
  if (type == GgufType::kString) {
    need(8, "the length of a string");
    const auto length = load<std::uint64_t>(at);
    bytes = bytes.subspan(8);
    need(length, "a string");
    return 8 + static_cast<std::size_t>(length);
  }
  if (type != GgufType::kArray) {
    need(fixed_size(type), "a value");
    return fixed_size(type);
  }
  if (depth == kMaxDepth) fail(ErrorCode::kFormat, "{}: arrays nested deeper than {}", where, kMaxDepth);
  need(kArrayHeadBytes, "the head of an array");
  const auto element = load<std::uint32_t>(at);
  const auto count = load<std::uint64_t>(at + 4);
  if (element >= kTypes) fail(ErrorCode::kFormat, "{}: an array of the unknown type {}", where, element);
  const auto element_type = static_cast<GgufType>(element);
  // Every element has at least this many bytes, so a count that cannot be is seen before any work is done.
  const std::size_t least = element_type == GgufType::kString  ? 8
                            : element_type == GgufType::kArray ? kArrayHeadBytes
                                                               : fixed_size(element_type);
  const std::span<const std::byte> elements = bytes.subspan(kArrayHeadBytes);
  if (count > elements.size() / least)
    fail(ErrorCode::kFormat, "{}: an array of {} {} does not fit in the {} bytes that are left", where, count,
         to_string(element_type), elements.size());
  std::size_t size = 0;
  if (fixed_size(element_type) != 0) {
    size = static_cast<std::size_t>(count) * least;
  } else {
    for (std::uint64_t i = 0; i < count; ++i) size += value_size(element_type, elements.subspan(size), where, depth + 1);
  }
  return kArrayHeadBytes + size;
}

}  // namespace

const char* to_string(GgufType type) {
  static constexpr const char* kNames[kTypes] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                 "bool", "string", "array", "u64", "i64", "f64"};
  const auto number = static_cast<std::uint32_t>(type);
  return number < kTypes ? kNames[number] : "unknown";
}

std::size_t gguf_value_size(GgufType type, std::span<const std::byte> bytes, std::string_view where) {
  if (static_cast<std::uint32_t>(type) >= kTypes)
    fail(ErrorCode::kFormat, "{}: a value of the unknown type {}", where, static_cast<std::uint32_t>(type));
  return value_size(type, bytes, where, 0);
}

GgufValue GgufValue::u32(std::uint32_t value) { return scalar(GgufType::kU32, value); }
GgufValue GgufValue::f32(float value) { return scalar(GgufType::kF32, value); }
GgufValue GgufValue::boolean(bool value) { return scalar<std::uint8_t>(GgufType::kBool, value ? 1 : 0); }
GgufValue GgufValue::string(std::string_view text) {
  GgufValue v{GgufType::kString, {}};
  append_string(v.bytes, text);
  return v;
}
GgufValue GgufValue::strings(std::span<const std::string> texts) {
  GgufValue v = array(GgufType::kString, texts.size());
  for (const std::string& text : texts) append_string(v.bytes, text);
  return v;
}
GgufValue GgufValue::i32s(std::span<const std::int32_t> values) {
  GgufValue v = array(GgufType::kI32, values.size());
  for (const std::int32_t value : values) store(v.bytes, value);
  return v;
}

GgufValue GgufValue::f32s(std::span<const float> values) {
  GgufValue v = array(GgufType::kF32, values.size());
  for (const float value : values) store(v.bytes, value);
  return v;
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto it = index_.find(std::string(key));
  return it == index_.end() ? nullptr : &entries_[it->second].value;
}

void GgufMetadata::set(std::string_view key, GgufValue value) {
  const auto [it, fresh] = index_.try_emplace(std::string(key), entries_.size());
  if (fresh) {
    entries_.push_back({std::string(key), std::move(value)});
  } else {
    entries_[it->second].value = std::move(value);
  }
}

void GgufMetadata::remove(std::string_view key) {
  std::vector<Entry> kept;
  for (Entry& e : entries_)
    if (e.key != key) kept.push_back(std::move(e));
  entries_ = std::move(kept);
  index_.clear();
  for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].key, i);
}

const GgufValue& GgufMetadata::expect(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) fail(ErrorCode::kFormat, "{}: the key {} is missing", where_, in_quotes(key));
  return *value;
}

void GgufMetadata::wrong_type(std::string_view key, const GgufValue& value, const char* expected) const {
  if (value.type == GgufType::kArray)
    fail(ErrorCode::kFormat, "{}: {} is an array of {}, expected {}", where_, in_quotes(key),
         to_string(array_head(value).type), expected);
  fail(ErrorCode::kFormat, "{}: {} is of type {}, expected {}", where_, in_quotes(key), to_string(value.type), expected);
}

std::int64_t GgufMetadata::integer(std::string_view key) const {
  const GgufValue& value = expect(key);
  const auto number = load_integer(value.type, value.bytes.data());
  if (!number) wrong_type(key, value, "an integer of at most 63 bits");
  return *number;
}

double GgufMetadata::number(std::string_view key) const {
  const GgufValue& value = expect(key);
  if (value.type == GgufType::kF32) return load<float>(value.bytes.data());
  if (value.type == GgufType::kF64) return load<double>(value.bytes.data());
  const auto number = load_integer(value.type, value.bytes.data());
  if (!number) wrong_type(key, value, "a number");
  return static_cast<double>(*number);
}

bool GgufMetadata::boolean(std::string_view key) const {
  const GgufValue& value = expect(key);
  if (value.type != GgufType::kBool) wrong_type(key, value, "a bool");
  return value.bytes[0] != 0;
}

std::string GgufMetadata::text(std::string_view key) const {
  const GgufValue& value = expect(key);
  if (value.type != GgufType::kString) wrong_type(key, value, "a string");
  return value.bytes.substr(8);
}

std::vector<std::string> GgufMetadata::texts(std::string_view key) const {
  const GgufValue& value = expect(key);
  if (value.type != GgufType::kArray || array_head(value).type != GgufType::kString)
    wrong_type(key, value, "an array of strings");
  const ArrayHead head = array_head(value);
  std::vector<std::string> out;
  out.reserve(static_cast<std::size_t>(head.count));
  const char* at = head.elements;
  for (std::uint64_t i = 0; i < head.count; ++i) {
    const auto length = static_cast<std::size_t>(load<std::uint64_t>(at));
    out.emplace_back(at + 8, length);
    at += 8 + length;
  }
  return out;
}

std::vector<std::int64_t> GgufMetadata::integers(std::string_view key) const {
  const GgufValue& value = expect(key);
  if (value.type != GgufType::kArray) wrong_type(key, value, "an array of integers");
  const ArrayHead head = array_head(value);
  std::vector<std::int64_t> out;
  const std::size_t step = fixed_size(head.type);
  for (std::uint64_t i = 0; i < head.count; ++i) {
    const auto number = load_integer(head.type, head.elements + i * step);
    if (!number) wrong_type(key, value, "an array of integers of at most 63 bits");
    out.push_back(*number);
  }
  return out;
}

std::vector<double> GgufMetadata::numbers(std::string_view key) const {
  const GgufValue& value = expect(key);
  const GgufType type = value.type == GgufType::kArray ? array_head(value).type : GgufType::kString;
  if (type != GgufType::kF32 && type != GgufType::kF64) wrong_type(key, value, "an array of floating numbers");
  const ArrayHead head = array_head(value);
  std::vector<double> out;
  const std::size_t step = fixed_size(type);
  for (std::uint64_t i = 0; i < head.count; ++i) {
    const char* const at = head.elements + i * step;
    out.push_back(type == GgufType::kF32 ? static_cast<double>(load<float>(at)) : load<double>(at));
  }
  return out;
}

}  // namespace dsmoe::io
