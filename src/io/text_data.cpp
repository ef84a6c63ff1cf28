#include "io/text_data.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <utility>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"

namespace dsmoe::io {

namespace {

constexpr std::size_t kMostText = std::size_t{2} << 30;

}  // namespace

std::string read_text(const std::string& path) {
  std::error_code unknown;
  const std::filesystem::file_status status = std::filesystem::status(path, unknown);
  if (std::filesystem::is_directory(status)) fail(ErrorCode::kIo, "{} is a folder; give a file", path);
  if (std::filesystem::is_character_file(status) || std::filesystem::is_block_file(status))
    fail(ErrorCode::kIo, "{} is a device; give a file", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kIo, "cannot read {}; is the path right?", path);
  file.exceptions(std::ios_base::badbit);  // or what was read before an error would be taken for all of it
  return read_text(file, path);
}

std::string read_text(std::istream& stream, const std::string& name) {
  std::string text;
  std::vector<char> part(std::size_t{1} << 20);
  try {
    while (stream.read(part.data(), static_cast<std::streamsize>(part.size())), stream.gcount() > 0) {
      text.append(part.data(), static_cast<std::size_t>(stream.gcount()));
      if (text.size() > kMostText)  // of a pipe it may be the beginning of no end
        fail(ErrorCode::kIo, "{} has more than {} GiB, which are read as one text; give a part of it", name,
             kMostText >> 30);
    }
  } catch (const std::ios_base::failure& error) {
    fail(ErrorCode::kIo, "reading {} failed: {}", name, error.code().message());
  }
  return text;
}

IdsReader::IdsReader(const std::filesystem::path& path, Index vocab_size) : lines_(path), vocab_size_(vocab_size) {
  require(vocab_size > 0 && vocab_size <= std::numeric_limits<std::int32_t>::max(), "a vocabulary of {} tokens",
          vocab_size);
}

bool IdsReader::next(std::vector<std::int32_t>& ids) {
  std::string_view line;
  if (!lines_.next(line)) return false;
  ids.clear();
  std::size_t at = 0;
  for (;;) {
    at = line.find_first_not_of(" \t", at);
    if (at == std::string_view::npos) break;
    const std::size_t end = std::min(line.find_first_of(" \t", at), line.size());
    const std::string_view word = line.substr(at, end - at);
    std::int64_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    const bool too_large = error == std::errc::result_out_of_range;
    if (stop != word.data() + word.size() || (error != std::errc() && !too_large)) {
      fail(ErrorCode::kFormat, "{}:{}:{}: expected a token id, found {}", lines_.path(), lines_.line(), at + 1,
           in_quotes(word));
    }
    if (too_large || id < 0 || id >= vocab_size_) {
      fail(ErrorCode::kFormat, "{}:{}:{}: the token id {} is not in the vocabulary, expected 0 to {}", lines_.path(),
           lines_.line(), at + 1, printable(word), vocab_size_ - 1);
    }
    ids.push_back(static_cast<std::int32_t>(id));
    at = end;
  }
  // Passed over, it would shift all later sequences against what is written about them.
  if (ids.empty()) fail(ErrorCode::kFormat, "{}:{}: a line without token ids", lines_.path(), lines_.line());
  return true;
}

TextReader::TextReader(const std::filesystem::path& path, std::size_t max_bytes) : lines_(path), max_bytes_(max_bytes) {}

bool TextReader::next(std::string& text) {
  std::string_view block;
  if (!lines_.next_block(block, max_bytes_)) return false;
  text = block;
  return true;
}

JsonlReader::JsonlReader(const std::filesystem::path& path, std::string field) : lines_(path), field_(std::move(field)) {}

bool JsonlReader::next(std::string& text) {
  std::string_view line;
  do {
    if (!lines_.next(line)) return false;
  } while (line.find_first_not_of(" \t") == std::string_view::npos);
  const std::string where = fmt::format("{}:{}", lines_.path(), lines_.line());
  text = json_read::get<std::string>(json_read::parse(line, where), field_, where);
  return true;
}

}  // namespace dsmoe::io
