// tokenizer.json, then a zero byte, then a text: load and encode, or refuse with an Error. In a file that does not
// name a vocabulary, "BYTES" stands for the 256 byte symbols, and "FALLBACK" for the 256 tokens <0x00> to <0xFF> of a
// vocabulary of characters, so that small inputs get as far as the merges.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/utf8.h"
#include "dsmoe/error.h"
#include "dsmoe/tokenizer.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/decoder.h"

namespace {

std::string byte_vocabulary() {
  std::string out;
  for (int b = 0; b < 256; ++b) {
    const std::string symbol = dsmoe::byte_level::encode(std::string(1, static_cast<char>(b)));
    out += (b ? ",\"" : "\"") + (symbol == "\"" || symbol == "\\" ? "\\" + symbol : symbol) + "\":" + std::to_string(b);
  }
  return out;
}

std::string fallback_vocabulary() {
  std::string out;
  for (int b = 0; b < 256; ++b)
    out += (b ? ",\"" : "\"") + dsmoe::byte_token(static_cast<unsigned char>(b)) + "\":" + std::to_string(b);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string bytes = byte_vocabulary(), fallback = fallback_vocabulary();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  std::string json(input.substr(0, zero));
  const std::string_view text = zero == std::string_view::npos ? input : input.substr(zero + 1);
  if (const std::size_t at = json.find("BYTES"); at != std::string::npos) json.replace(at, 5, bytes);
  if (const std::size_t at = json.find("FALLBACK"); at != std::string::npos) json.replace(at, 8, fallback);
  try {
    const auto tokenizer = dsmoe::Tokenizer::from_json(json, text.starts_with('{') ? std::string(text) : std::string());
    for (const bool parse_special : {true, false}) {
      const auto ids = tokenizer.encode(text, {.parse_special = parse_special});
      dsmoe::StreamDecoder stream(tokenizer);
      std::string streamed;
      for (const auto id : ids) streamed += stream.push(id);
      streamed += stream.finish();
      const std::string decoded = tokenizer.decode(ids);
      if (streamed != decoded || dsmoe::utf8::valid_prefix(decoded) != decoded.size()) std::abort();
    }
  } catch (const dsmoe::Error&) {
  }
  return 0;
}
