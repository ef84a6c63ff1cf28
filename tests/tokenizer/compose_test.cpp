#include "tokenizer/compose.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <iterator>
#include <memory>
#include <random>

namespace dsmoe {
namespace {

std::string nfc(std::string_view text) {
  std::string out;
  std::size_t done = 0;
  each_composed_part(text, [&](std::size_t begin, std::size_t end, const std::string& composed) {
    out.append(text.substr(done, begin - done)) += composed;
    done = end;
  });
  return out.append(text.substr(done));
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

// Ordered by swapping neighbours, each of these takes minutes.
TEST(Compose, LongRunsOfMarks) {
  const std::size_t n = 200'000;
  const std::string below = repeated("\u0316", n), above = repeated("\u0301", n);
  EXPECT_TRUE(nfc("q" + repeated("\u0301\u0316", n)) == "q" + below + above);
  EXPECT_TRUE(nfc(repeated("\u0301\u0316", n)) == below + above) << "without a letter before them";
  EXPECT_TRUE(nfc("a" + repeated("\u0301\u0316", n)) == "\u00e1" + below + repeated("\u0301", n - 1));
  // U+0344 is two marks.
  EXPECT_TRUE(nfc("q" + repeated("\u0344\u0316", n)) == "q" + below + repeated("\u0308\u0301", n));
}

TEST(Compose, AsUtf8procDoes) {
  const char32_t some[] = {'a',       'q',     'e',     U'\u00e9', U'\u1ed9', U'\u0300', U'\u0301', U'\u0302', U'\u0307',
                           U'\u0308', 0x316,   0x323,   0x327,     0x334,     0x344,     0x345,     0x5b4,     0x5c1,
                           0x64b,     0x651,   0xf71,   0xf72,     0xf73,     0x1100,    0x1161,    0x11a8,    0xac00,
                           0xac01,    0x3099,  0x304b,  0x9c7,     0x9be,     0x1025,    0x102e,    0x212b,    0xfb2a,
                           0x1d15e,   0x1d165, 0x1f600, 0x11131,   0x11127};
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (auto left = random() % 12 + 1; left > 0; --left) {
      utf8proc_uint8_t bytes[4];
      const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(some[random() % std::size(some)]), bytes);
      text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
    }
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> want(
        utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str())), &std::free);
    ASSERT_EQ(nfc(text), reinterpret_cast<const char*>(want.get())) << ::testing::PrintToString(text);
  }
}

TEST(Compose, WhatIsNoUtf8StaysAsItIs) {
  EXPECT_EQ(nfc("e\xcc"), "e\xcc");
  EXPECT_EQ(nfc("\xff\xfe"), "\xff\xfe");
  EXPECT_EQ(nfc("\xe3\x81"), "\xe3\x81");
  EXPECT_EQ(nfc("\xf0"), "\xf0");
  EXPECT_EQ(nfc("e\xcc\x81\xff"
                "e\xcc\x81"),
            "\xc3\xa9\xff\xc3\xa9")
      << "what stands around it is composed";
}

}  // namespace
}  // namespace dsmoe
