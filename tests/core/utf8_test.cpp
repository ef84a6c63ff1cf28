#include "core/utf8.h"

#include <gtest/gtest.h>

#include "support/sanitized.h"

namespace dsmoe {
namespace {

// The definition, by construction: a sequence is well-formed if it is what some code point is written as.
TEST(Utf8, EveryCharacterIsValidAndComesBack) {
  // With sanitizers every one of up to three bytes where lengths change, and some of the rest.
  const auto step = [](char32_t c) { return !test::kSanitized || c < 0x900 || (c > 0xFF00 && c < 0x10100) ? 1u : 61u; };
  for (char32_t c = 0; c <= 0x10FFFF; c += step(c)) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    utf8::append(text, c);
    const utf8::Sequence s = utf8::sequence_at(text, 0);
    ASSERT_TRUE(s.valid && s.length == text.size()) << static_cast<std::uint32_t>(c);
    std::size_t at = 0;
    ASSERT_EQ(utf8::next(text, at), c);
    ASSERT_EQ(at, text.size());
    ASSERT_EQ(utf8::previous(text, text.size()), 0u);
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(utf8::cut_tail(std::string_view(text).substr(0, cut)), cut);
      ASSERT_EQ(utf8::replace_invalid(std::string_view(text).substr(0, cut)), "\xEF\xBF\xBD");
    }
    ASSERT_EQ(utf8::cut_tail(text), 0u);
  }
}

// Two-byte heads that no character begins with: overlong forms, surrogates, beyond the last plane.
TEST(Utf8, IllFormedHeadsAreOneByteEach) {
  for (const char* text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F", "\xED\xA0", "\xF0\x8F", "\xF4\x90", "\xF5\x80", "\xFF\x80"}) {
    EXPECT_EQ(utf8::sequence_at(text, 0).length, 1u) << text;
    EXPECT_FALSE(utf8::sequence_at(text, 0).valid);
    EXPECT_EQ(utf8::replace_invalid(text), "\xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_EQ(utf8::cut_tail(text), 0u);
  }
}

// The example of the Unicode standard, table 3-11 (maximal subparts).
TEST(Utf8, ReplacesMaximalSubparts) {
  EXPECT_EQ(utf8::replace_invalid("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x41");
  EXPECT_EQ(utf8::replace_invalid("abc"), "abc");
  EXPECT_EQ(utf8::replace_invalid(""), "");
}

TEST(Utf8, ValidPrefixStopsAtTheFirstBadByte) {
  const std::string good = "0123456789 \xC3\xA9 \xE4\xBD\xA0 01234567890123456789";
  EXPECT_EQ(utf8::valid_prefix(good), good.size());
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = '\xFF';
    // A changed byte in a character spoils it from its first byte on.
    std::size_t start = at;
    while ((static_cast<unsigned char>(good[start]) & 0xC0) == 0x80) --start;
    EXPECT_EQ(utf8::valid_prefix(bad), start) << at;
  }
}

}  // namespace
}  // namespace dsmoe
