#include "io/json_text.h"

#include <string>
#include <unordered_set>
#include <vector>

#include "core/fail.h"
#include "io/mapped_file.h"
#include "io/printable.h"

namespace dsmoe::io {

namespace {
constexpr int kMaxDepth = 100;
constexpr std::size_t kMaxBytes = 100'000'000;  // a tokenizer.json of a large vocabulary has about 10 MB
}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view where) {
  using Event = nlohmann::json::parse_event_t;
  if (text.size() > kMaxBytes) {
    fail(ErrorCode::kFormat, "{}: {} bytes, expected at most {} of JSON", where, text.size(), kMaxBytes);
  }
  // The lexer takes a zero byte for the end of the text and would not look at what follows it.
  if (text.find('\0') != std::string_view::npos) fail(ErrorCode::kFormat, "{}: a zero byte in a JSON text", where);
  std::vector<std::unordered_set<std::string>> keys;  // of each open object
  const auto check = [&](int depth, Event event, nlohmann::json& value) {
    if ((event == Event::object_start || event == Event::array_start) && depth >= kMaxDepth) {
      fail(ErrorCode::kFormat, "{}: JSON nested deeper than {}", where, kMaxDepth);
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get_ref<const std::string&>()).second) {
      fail(ErrorCode::kFormat, "{}: the key {} is there twice", where, in_quotes(value.get_ref<const std::string&>()));
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorCode::kFormat, "{}: not valid JSON: {}", where, printable(e.what()));
  }
}

nlohmann::json read_json(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace dsmoe::io
