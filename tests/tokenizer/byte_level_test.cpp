#include "tokenizer/byte_level.h"

#include <gtest/gtest.h>

#include "core/utf8.h"

namespace dsmoe {
namespace {

TEST(ByteLevel, EveryByteHasItsOwnCharacter) {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  const std::string written = byte_level::encode(all);
  EXPECT_EQ(utf8::valid_prefix(written), written.size());
  EXPECT_EQ(byte_level::decode(written), all);
  EXPECT_EQ(byte_level::encode(" a\n\xC3"), "ĠaĊÃ");
  EXPECT_EQ(byte_level::decode("a b"), std::nullopt);  // a space is not in the alphabet
  EXPECT_EQ(byte_level::decode("\xE4\xBD\xA0"), std::nullopt);
}

}  // namespace
}  // namespace dsmoe
