#include "core/printable.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/random.h"
#include "core/utf8.h"

namespace dsmoe {
namespace {

TEST(Printable, LeavesTextAloneAndEscapesTheRest) {
  EXPECT_EQ(printable("model.layers.0 — é 你好 🦙"), "model.layers.0 — é 你好 🦙");
  EXPECT_EQ(printable(std::string_view("a\0b\n\x1b[31m\x7f", 10)), "a\\x00b\\x0a\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\x9b31m")
      << "a terminal's control sequence in one character";
  EXPECT_EQ(printable("a\u202Eb\u2028c\uFEFF"), "a\\u202eb\\u2028c\\ufeff");
  EXPECT_EQ(printable("\xFF"
                      "a\xE4\xBD"),
            "\\xffa\\xe4\\xbd");
  EXPECT_EQ(in_quotes("a\tb"), "'a\\x09b'");
  EXPECT_EQ(in_quotes(""), "''");
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdefg", 6), "abcdef...");
  EXPECT_EQ(printable("ab你好", 4), "ab...");
  EXPECT_EQ(printable(std::string(5000, 'n')).size(), kPrintableBytes + 3);
  EXPECT_EQ(printable("a", 0), "...");
}

TEST(Printable, IsOneLineOfUtf8ForAnyBytes) {
  const Philox random(3, 0);
  for (std::uint64_t n = 0; n < 300; ++n) {
    std::string text;
    for (std::uint64_t i = 0; i < n; ++i) text.push_back(static_cast<char>(random.below(n * 1000 + i, 256)));
    const std::string shown = printable(text);
    ASSERT_EQ(utf8::valid_prefix(shown), shown.size());
    ASSERT_TRUE(std::none_of(shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }));
  }
}

}  // namespace
}  // namespace dsmoe
