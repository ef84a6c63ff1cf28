// A file of tiktoken's ranks, a zero byte, its tokenizer_config.json, a zero byte, a text: load, encode and save, or refuse
// with an Error. "BYTES" stands for the lines of the 256 bytes, so that small inputs get as far as the merges. A first
// letter of h is Hunyuan's file, any other Kimi-K2's.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/utf8.h"
#include "dsmoe/error.h"
#include "tokenizer/tiktoken.h"

namespace {

std::string byte_lines() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t b = 0; b < 256; ++b)
    out += std::string{kDigits[b >> 2], kDigits[(b & 3) << 4], '=', '='} + " " + std::to_string(b) + "\n";
  return out;
}

std::string_view up_to_zero(std::string_view& rest) {
  const std::string_view part = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string bytes = byte_lines();
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const bool hunyuan = rest.starts_with('h');
  rest.remove_prefix(std::min<std::size_t>(1, rest.size()));
  std::string ranks(up_to_zero(rest));
  const std::string config(up_to_zero(rest));
  if (const std::size_t at = ranks.find("BYTES"); at != std::string::npos) ranks.replace(at, 5, bytes);
  try {
    const auto tokenizer = dsmoe::tokenizer_of_ranks(hunyuan ? "hy.tiktoken" : "tiktoken.model", ranks, config, {});
    const auto saved = dsmoe::Tokenizer::from_json(tokenizer.to_json(), tokenizer.config_json());
    for (const bool parse_special : {true, false}) {
      const auto ids = tokenizer.encode(rest, {.parse_special = parse_special});
      if (saved.encode(rest, {.parse_special = parse_special}) != ids) std::abort();
      dsmoe::StreamDecoder stream(tokenizer);
      std::string streamed;
      for (const auto id : ids) streamed += stream.push(id);
      streamed += stream.finish();
      const std::string decoded = tokenizer.decode(ids);
      if (streamed != decoded || dsmoe::utf8::valid_prefix(decoded) != decoded.size()) std::abort();
      // Every byte is a token: nothing of a text is lost.
      if (!hunyuan && !tokenizer.bos_id() && decoded != dsmoe::utf8::replace_invalid(rest)) std::abort();
    }
  } catch (const dsmoe::Error& e) {
    if (e.code() == dsmoe::ErrorCode::kInternal || std::string_view(e.what()).find('\n') != std::string_view::npos)
      std::abort();
  }
  return 0;
}
