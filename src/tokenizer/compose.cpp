#include "tokenizer/compose.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/utf8.h"

namespace dsmoe {

namespace {

// Whether a character never composes with one before it, so that a text may be cut there: of combining class 0, in blocks
// where none is the second of a pair. Others merely make longer parts.
bool begins_a_part(char32_t c) {
  const bool block = c < 0x300 || (c >= 0x370 && c < 0x900) || (c >= 0x1E00 && c < 0x20D0) || (c >= 0x2100 && c < 0xA66F) ||
                     (c >= 0xAC00 && c < 0xD7B0) || (c >= 0xE000 && c < 0xFB1E) || (c >= 0xFF00 && c < 0x10000) ||
                     c >= 0x1F000;
  return block && utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class == 0;
}

// The character at `at`, or U+FFFD, which begins a part, for bytes that are none; moves `at` behind it.
char32_t character(std::string_view text, std::size_t& at) {
  const utf8::Sequence s = utf8::sequence_at(text, at);
  if (s.valid) return utf8::next(text, at);
  at += s.length;
  return 0xFFFD;
}

constexpr auto kForm = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

// Characters taken apart as far as Unicode's canonical decomposition goes; nothing where the part is no UTF-8.
std::vector<utf8proc_int32_t> decomposed(std::string_view part) {
  std::vector<utf8proc_int32_t> out;
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(part.data());
  for (const auto* const end = at + part.size(); at < end;) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t bytes = utf8proc_iterate(at, end - at, &c);
    if (bytes <= 0) return {};
    at += bytes;
    std::array<utf8proc_int32_t, 32> parts;  // Unicode has no more than 18 for one
    int bounds = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(c, parts.data(), parts.size(), kForm, &bounds);
    if (n < 0 || static_cast<std::size_t>(n) > parts.size()) return {};
    out.insert(out.end(), parts.begin(), parts.begin() + n);
  }
  return out;
}

// Each run of marks by combining class, those of one class as they stood. utf8proc_map would do the same by swapping
// neighbours, and a request of a few hundred kilobytes of marks would keep it busy for minutes.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  const auto rank = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  const auto is_mark = [&](utf8proc_int32_t c) { return rank(c) != 0; };
  for (auto begin = text.begin(); (begin = std::find_if(begin, text.end(), is_mark)) != text.end();) {
    const auto end = std::find_if_not(begin, text.end(), is_mark);
    std::stable_sort(begin, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) { return rank(a) < rank(b); });
    begin = end;
  }
}

std::string composed(std::string_view part) {
  std::vector<utf8proc_int32_t> text = decomposed(part);
  order_marks(text);
  const utf8proc_ssize_t size = utf8proc_normalize_utf32(text.data(), static_cast<utf8proc_ssize_t>(text.size()), kForm);
  if (size <= 0) return std::string(part);
  std::string out;
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    std::array<utf8proc_uint8_t, 4> bytes;
    const utf8proc_ssize_t n = utf8proc_encode_char(text[static_cast<std::size_t>(i)], bytes.data());
    out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(n));
  }
  return out;
}

}  // namespace

void each_composed_part(std::string_view text, const std::function<void(std::size_t, std::size_t, std::string)>& fn) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  for (std::size_t at = 0; at < text.size();) {
    // Characters that are followed by others of their kind stay as they are.
    if (is_ascii(text[at]) && (at + 1 == text.size() || is_ascii(text[at + 1]))) {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    character(text, at);
    while (at < text.size()) {
      std::size_t next = at;
      if (begins_a_part(character(text, next))) break;
      at = next;
    }
    if (std::string made = composed(text.substr(begin, at - begin)); made != text.substr(begin, at - begin))
      fn(begin, at, std::move(made));
  }
}

}  // namespace dsmoe
