#include "grammar/char_set.h"

#include <algorithm>
#include <string>

#include "core/utf8.h"

namespace dsmoe::grammar {

CharSet::CharSet(std::vector<CharRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const CharRange& a, const CharRange& b) { return a.first < b.first; });
  for (const CharRange& r : ranges) {
    if (!ranges_.empty() && r.first <= ranges_.back().last + 1)
      ranges_.back().last = std::max(ranges_.back().last, r.last);
    else
      ranges_.push_back(r);
  }
}

CharSet CharSet::complement() const {
  CharSet out;
  char32_t next = 0;
  for (const CharRange& r : ranges_) {
    if (r.first > next) out.ranges_.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= kLastChar) out.ranges_.push_back({next, kLastChar});
  return out;
}

CharSet CharSet::united(const CharSet& other) const {
  std::vector<CharRange> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CharSet(std::move(both));
}

CharSet CharSet::without(const CharSet& other) const { return complement().united(other).complement(); }

bool CharSet::contains(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [c](const CharRange& r) { return r.first <= c && c <= r.last; });
}

namespace {

// Characters of one length whose bytes but the last few are the same make one sequence. A range is cut where that ends:
// at its first and last character that do not begin or end a block of 64, 64 * 64 or 64 * 64 * 64.
void add_same_length(char32_t first, char32_t last, std::vector<ByteSequence>& out) {
  for (int level = last < 0x80 ? 4 : 1; level < 4; ++level) {
    const char32_t block = (char32_t{1} << (6 * level)) - 1;
    if ((first & ~block) == (last & ~block)) continue;
    if (first & block) {
      add_same_length(first, first | block, out);
      return add_same_length((first | block) + 1, last, out);
    }
    if ((last & block) != block) {
      add_same_length(first, (last & ~block) - 1, out);
      return add_same_length(last & ~block, last, out);
    }
  }
  std::string a, b;
  utf8::append(a, first);
  utf8::append(b, last);
  ByteSequence s;
  s.length = static_cast<int>(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    s.first[i] = static_cast<std::uint8_t>(a[i]);
    s.last[i] = static_cast<std::uint8_t>(b[i]);
  }
  out.push_back(s);
}

}  // namespace

std::vector<ByteSequence> utf8_sequences(const CharSet& set) {
  // The lengths of UTF-8, and the surrogates left out.
  static constexpr CharRange kParts[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, kLastChar}};
  std::vector<ByteSequence> out;
  for (const CharRange& r : set.ranges())
    for (const CharRange& part : kParts) {
      const char32_t first = std::max(r.first, part.first), last = std::min(r.last, part.last);
      if (first <= last) add_same_length(first, last, out);
    }
  return out;
}

}  // namespace dsmoe::grammar
