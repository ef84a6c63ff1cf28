#include "train/data/token_cache.h"

#include <array>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"

namespace dsmoe::train {

namespace {

using json_read::Json;

constexpr std::string_view kHead = "DSMOETOK", kTail = "KOTEOMSD";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeadBytes = 16, kTailBytes = 24, kBuffered = std::size_t{1} << 18;  // tokens

template <class T>
T number_at(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::string_view text_at(std::span<const std::byte> bytes, std::size_t at, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes.data()) + at, size};
}

[[noreturn]] void broken(std::string_view name, std::string_view what) {
  fail(ErrorCode::kFormat, "{}: not a token cache of this version: {}", name, what);
}

}  // namespace

TokenCacheView parse_token_cache(std::span<const std::byte> bytes, std::string_view name) {
  const std::uint64_t size = bytes.size();
  if (size < kHeadBytes + kTailBytes) broken(name, fmt::format("{} bytes", size));
  if (text_at(bytes, 0, 8) != kHead || number_at<std::uint32_t>(bytes, 8) != kVersion ||
      number_at<std::uint32_t>(bytes, 12) != 0)
    broken(name, "it begins with something else");
  if (text_at(bytes, size - 8, 8) != kTail) broken(name, "it ends with something else");
  const auto info_bytes = number_at<std::uint64_t>(bytes, size - 24), tokens = number_at<std::uint64_t>(bytes, size - 16);
  const std::uint64_t room = size - kHeadBytes - kTailBytes;
  if (info_bytes > room || tokens > room / 4 || tokens * 4 + info_bytes != room)
    broken(name, fmt::format("{} tokens and {} bytes of description in {} bytes", tokens, info_bytes, size));

  TokenCacheView view;
  view.tokens = bytes.subspan(kHeadBytes, tokens * 4);
  const Json info = json_read::parse(text_at(bytes, kHeadBytes + tokens * 4, info_bytes), name);
  const auto get = [&](const char* key, auto& out) {
    out = json_read::get<std::remove_reference_t<decltype(out)>>(info, key, name);
  };
  get("key", view.info.key);
  view.info.hash = json_read::get_or<std::string>(info, "hash", "", name);
  get("labels", view.info.labels);
  get("bad", view.info.bad);
  get("files", view.info.files);
  get("documents", view.info.documents);
  get("bad_count", view.info.bad_count);
  if (view.info.labels.size() > StreamToken::kMaxLabels || view.info.bad.size() > view.info.bad_count)
    broken(name, "numbers that contradict each other");
  return view;
}

TokenCacheWriter::TokenCacheWriter(const std::filesystem::path& path) : file_(path) {
  std::array<std::byte, kHeadBytes> head{};
  std::memcpy(head.data(), kHead.data(), 8);
  std::memcpy(head.data() + 8, &kVersion, 4);
  file_.write(head);
  buffer_.reserve(kBuffered);
}

void TokenCacheWriter::append(std::span<const StreamToken> tokens) {
  count_ += tokens.size();
  for (const StreamToken& token : tokens) hash_.add(token.word);
  if (buffer_.size() + tokens.size() > kBuffered) {
    file_.write(std::as_bytes(std::span(buffer_)));
    buffer_.clear();
  }
  if (tokens.size() > kBuffered)
    file_.write(std::as_bytes(tokens));
  else
    buffer_.insert(buffer_.end(), tokens.begin(), tokens.end());
}

void TokenCacheWriter::finish(const TokenCacheInfo& info) {
  std::vector<std::string> bad;  // file names may be any bytes, JSON may not
  for (const std::string& message : info.bad) bad.push_back(printable(message));
  const std::string text = Json{
      {"key", info.key},     {"hash", hash_.hex()},         {"labels", info.labels},
      {"files", info.files}, {"documents", info.documents}, {"bad_count", info.bad_count},
      {"bad", bad}}.dump(-1, ' ', true, Json::error_handler_t::replace);
  file_.write(std::as_bytes(std::span(buffer_)));
  file_.write(std::as_bytes(std::span(text)));
  const std::array<std::uint64_t, 2> sizes = {text.size(), count_};
  file_.write(std::as_bytes(std::span(sizes)));
  file_.write(std::as_bytes(std::span(kTail)));
  file_.commit();
}

}  // namespace dsmoe::train
