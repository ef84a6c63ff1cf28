// What a GGUF file says about itself: keys with typed values, in the order of the file.
//
// A value is kept as the format writes it, and read when asked for. So a value of any type and size is carried from one
// file to another unchanged, and costs no more memory than it has bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dsmoe::io {

enum class GgufType : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
const char* to_string(GgufType type);  // "u8", ..., "array"

struct GgufValue {
  GgufType type = GgufType::kU32;
  std::string bytes;  // as in the file, without the type

  static GgufValue u32(std::uint32_t value);
  static GgufValue f32(float value);
  static GgufValue boolean(bool value);
  static GgufValue string(std::string_view text);
  static GgufValue strings(std::span<const std::string> texts);
  static GgufValue i32s(std::span<const std::int32_t> values);
  static GgufValue f32s(std::span<const float> values);

  friend bool operator==(const GgufValue&, const GgufValue&) = default;
};

class GgufMetadata {
 public:
  struct Entry {
    std::string key;
    GgufValue value;
  };

  explicit GgufMetadata(std::string where = "GGUF metadata") : where_(std::move(where)) {}

  const std::string& where() const { return where_; }  // begins every message: the file's name
  const std::vector<Entry>& entries() const { return entries_; }
  const GgufValue* find(std::string_view key) const;  // null when there is none
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  void set(std::string_view key, GgufValue value);  // in place of one of that key, else at the end
  void remove(std::string_view key);

  // Throw Error naming the key when it is missing or of a type that does not hold what is asked for.
  std::int64_t integer(std::string_view key) const;  // of any integer type
  double number(std::string_view key) const;         // of any integer or floating type
  bool boolean(std::string_view key) const;
  std::string text(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;  // of floating types

  // The same with a value for a key that is missing.
  std::int64_t integer(std::string_view key, std::int64_t otherwise) const {
    return contains(key) ? integer(key) : otherwise;
  }
  double number(std::string_view key, double otherwise) const { return contains(key) ? number(key) : otherwise; }
  bool boolean(std::string_view key, bool otherwise) const { return contains(key) ? boolean(key) : otherwise; }
  std::string text(std::string_view key, std::string_view otherwise) const {
    return contains(key) ? text(key) : std::string(otherwise);
  }

 private:
  const GgufValue& expect(std::string_view key) const;
  [[noreturn]] void wrong_type(std::string_view key, const GgufValue& value, const char* expected) const;

  std::string where_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> index_;
};

// The number of bytes of a value at the start of `bytes`. Throws Error when they are no such value.
std::size_t gguf_value_size(GgufType type, std::span<const std::byte> bytes, std::string_view where);

}  // namespace dsmoe::io
