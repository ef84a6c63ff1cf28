#include "core/utf8.h"

#include <cstdint>
#include <cstring>

namespace dsmoe::utf8 {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::size_t ascii_prefix(std::string_view text, std::size_t at) {
  std::uint64_t word;
  while (at + sizeof(word) <= text.size()) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    if (word & 0x8080808080808080ull) break;
    at += sizeof(word);
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

// Table 3-7 of the Unicode standard: the second byte decides about overlong forms, surrogates and the last plane.
Sequence sequence_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(at);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {i, false, true};
    if (byte(at + i) < low || byte(at + i) > high) return {i, false, false};
    low = 0x80, high = 0xBF;
  }
  return {length, true, false};
}

std::size_t valid_prefix(std::string_view text) {
  std::size_t at = ascii_prefix(text, 0);
  while (at < text.size()) {
    const Sequence s = sequence_at(text, at);
    if (!s.valid) break;
    at += s.length;
    if (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) at = ascii_prefix(text, at);
  }
  return at;
}

std::string replace_invalid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t good = valid_prefix(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    out.append(kReplacement);
    text.remove_prefix(sequence_at(text, 0).length);
  }
  return out;
}

std::size_t cut_tail(std::string_view text) {
  for (std::size_t n = 1; n <= 3 && n <= text.size(); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if (byte < 0x80) return 0;
    if (byte >= 0xC0) {
      const Sequence s = sequence_at(text, text.size() - n);
      return s.cut && s.length == n ? n : 0;
    }
  }
  return 0;
}

char32_t next(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(at);
  if (lead < 0x80) return at += 1, lead;
  if (lead < 0xE0) return at += 2, (lead & 0x1F) << 6 | (byte(at - 1) & 0x3F);
  if (lead < 0xF0) return at += 3, (lead & 0x0F) << 12 | (byte(at - 2) & 0x3F) << 6 | (byte(at - 1) & 0x3F);
  at += 4;
  return (lead & 0x07) << 18 | (byte(at - 3) & 0x3F) << 12 | (byte(at - 2) & 0x3F) << 6 | (byte(at - 1) & 0x3F);
}

std::size_t previous(std::string_view text, std::size_t end) {
  do --end;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

void append(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace dsmoe::utf8
