// Sets of Unicode characters, and the byte sequences that UTF-8 writes for them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace dsmoe::grammar {

inline constexpr char32_t kLastChar = 0x10FFFF;

struct CharRange {
  char32_t first = 0, last = 0;
  bool operator==(const CharRange&) const = default;
};

// Ascending ranges that neither overlap nor touch.
class CharSet {
 public:
  CharSet() = default;
  explicit CharSet(std::vector<CharRange> ranges);  // in any order
  static CharSet one(char32_t c) { return CharSet({{c, c}}); }
  static CharSet all() { return CharSet({{0, kLastChar}}); }

  CharSet complement() const;
  CharSet united(const CharSet& other) const;
  CharSet without(const CharSet& other) const;
  bool contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<CharRange>& ranges() const { return ranges_; }

 private:
  std::vector<CharRange> ranges_;
};

// One to four ranges of bytes, one after another.
struct ByteSequence {
  std::array<std::uint8_t, 4> first{}, last{};
  int length = 0;
};

// What UTF-8 writes for the set: well-formed bytes alone, so no surrogates.
std::vector<ByteSequence> utf8_sequences(const CharSet& set);

}  // namespace dsmoe::grammar
