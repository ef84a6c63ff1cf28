#include "tokenizer/byte_level.h"

#include <array>

#include "core/utf8.h"

namespace dsmoe::byte_level {

namespace {

constexpr char32_t kFirstMoved = 0x100;

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int, kFirstMoved + 68> byte{};

  constexpr Alphabet() {
    byte.fill(-1);
    char32_t moved = kFirstMoved;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      character[b] = printable ? b : moved++;
      byte[character[b]] = static_cast<int>(b);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::string encode(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) utf8::append(out, kAlphabet.character[static_cast<unsigned char>(c)]);
  return out;
}

std::optional<std::string> decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = utf8::next(text, at);
    if (c >= kAlphabet.byte.size() || kAlphabet.byte[c] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kAlphabet.byte[c]));
  }
  return out;
}

}  // namespace dsmoe::byte_level
