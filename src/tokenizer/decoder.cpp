#include "tokenizer/decoder.h"

#include <fmt/format.h>

#include <charconv>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "tokenizer/byte_level.h"

namespace dsmoe {

namespace {

constexpr const char* kWhere = "tokenizer.json: decoder";

// The byte of "<0xE4>", or -1.
int byte_of(std::string_view token) {
  unsigned value = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return error == std::errc() && end == token.data() + 5 ? static_cast<int>(value) : -1;
}

// Of the steps that such vocabularies have, in their order: Replace, ByteFallback, Fuse, Strip.
Decoder read_steps(const nlohmann::json& steps) {
  Decoder out{.byte_level = false};
  constexpr std::string_view kOrder[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
  std::size_t next = 0;
  bool bytes = false, fused = false;
  for (const auto& step : steps) {
    if (!step.is_object()) fail(ErrorCode::kFormat, "{}: a step is not an object", kWhere);
    const auto type = json_read::get<std::string>(step, "type", kWhere);
    while (next < std::size(kOrder) && kOrder[next] != type) ++next;
    if (next++ == std::size(kOrder))
      fail(ErrorCode::kUnsupported,
           "{}: step {} is not supported there (only Replace, ByteFallback, Fuse, Strip are, in this order)", kWhere,
           in_quotes(type));
    if (type == "Replace") {
      const auto& pattern = json_read::object(step, "pattern", kWhere);
      out.mark = json_read::get<std::string>(pattern, "String", kWhere);
      out.space = json_read::get<std::string>(step, "content", kWhere);
      if (out.mark.empty()) fail(ErrorCode::kFormat, "{}: Replace of nothing", kWhere);
      if (out.space.size() > out.mark.size())  // then texts could become as long as a file makes them
        fail(ErrorCode::kUnsupported, "{}: Replace of {} by something longer is not supported", kWhere,
             in_quotes(out.mark));
    }
    bytes |= type == "ByteFallback", fused |= type == "Fuse";
    if (type != "Strip") continue;
    const Index start = json_read::get_or<Index>(step, "start", 0, kWhere),
                stop = json_read::get_or<Index>(step, "stop", 0, kWhere);
    if (json_read::get<std::string>(step, "content", kWhere) != " " || start < 0 || start > 1 || stop != 0 || !fused)
      fail(ErrorCode::kUnsupported, "{}: Strip of other than one space at the beginning is not supported", kWhere);
    out.strip_first = start == 1;
  }
  if (!bytes) fail(ErrorCode::kUnsupported, "{}: a Sequence without ByteFallback is not supported", kWhere);
  return out;
}

}  // namespace

std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

std::string Decoder::bytes(const std::string& token) const {
  if (byte_level) return byte_level::decode(token).value_or(token);
  if (const int byte = byte_of(token); byte >= 0) return std::string(1, static_cast<char>(byte));
  if (mark.empty()) return token;
  std::string out;
  std::size_t done = 0;
  for (std::size_t at; (at = token.find(mark, done)) != std::string::npos; done = at + mark.size())
    out.append(token, done, at - done).append(space);
  return out.append(token, done);
}

Decoder read_decoder(const nlohmann::json& file) {
  const auto* const decoder = json_read::find(file, "decoder");
  if (!decoder) fail(ErrorCode::kUnsupported, "tokenizer.json: no decoder; only ByteLevel and ByteFallback are supported");
  const auto type = json_read::get<std::string>(*decoder, "type", kWhere);
  if (type == "ByteLevel") return {};
  if (type == "Sequence") return read_steps(json_read::array(*decoder, "decoders", kWhere));
  fail(ErrorCode::kUnsupported, "{} {} is not supported (only ByteLevel and a Sequence with ByteFallback are)", kWhere,
       in_quotes(type));
}

}  // namespace dsmoe
