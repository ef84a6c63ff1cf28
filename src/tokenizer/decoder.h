// From a token's text in tokenizer.json to its bytes: the "decoder" there. Two kinds are known. In the byte-level alphabet
// a character stands for a byte. In a vocabulary of characters, as SentencePiece makes them, the text is the bytes, but for
// a mark (▁) that stands for a space and for tokens like <0xE4>, which are a byte that no other token could write.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dsmoe {

struct Decoder {
  bool byte_level = true;
  std::string mark, space;   // of characters: every `mark` is a `space`; none when empty
  bool strip_first = false;  // a text begins without the space of its first word

  std::string bytes(const std::string& token) const;
};

// tokenizer.json's "decoder"; what is neither of the two is refused by name.
Decoder read_decoder(const nlohmann::json& file);

// "<0x0A>" as JSON writes the token of a byte.
std::string byte_token(unsigned char byte);

}  // namespace dsmoe
