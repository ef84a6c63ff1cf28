#include "tokenizer/normalizer.h"

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"

namespace dsmoe {

namespace {
constexpr int kMaxDepth = 8;  // of sequences in sequences
// A hostile chain of replacements may grow a text without end.
std::size_t size_limit(std::size_t original) { return (std::size_t{1} << 20) + 16 * original; }
}  // namespace

Regex read_pattern(const nlohmann::json& owner, std::string_view where) {
  const auto& pattern = json_read::object(owner, "pattern", where);
  if (pattern.contains("Regex")) return Regex(json_read::get<std::string>(pattern, "Regex", where));
  return Regex::literal(json_read::get<std::string>(pattern, "String", where));
}

Normalizer::Normalizer(const nlohmann::json& description) { add(description, 0); }

void Normalizer::add(const nlohmann::json& description, int depth) {
  constexpr const char* kWhere = "tokenizer.json: normalizer";
  if (description.is_null()) return;
  if (!description.is_object() || depth > kMaxDepth)
    fail(ErrorCode::kFormat, "{}: not an object, or nested too deeply", kWhere);
  const auto type = json_read::get<std::string>(description, "type", kWhere);
  if (type == "Sequence") {
    for (const auto& part : json_read::array(description, "normalizers", kWhere)) add(part, depth + 1);
  } else if (type == "Replace") {
    steps_.emplace_back(
        Replace{read_pattern(description, kWhere), json_read::get<std::string>(description, "content", kWhere)});
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{json_read::get<std::string>(description, "prepend", kWhere)});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{json_read::get_or(description, "strip_left", true, kWhere),
                              json_read::get_or(description, "strip_right", true, kWhere)});
  } else {
    fail(ErrorCode::kUnsupported, "{} {} is not supported (only Sequence, Replace, Prepend and Strip are)", kWhere,
         in_quotes(type));
  }
}

std::string Normalizer::run(const Replace& step, std::string text, RegexScratch& scratch) {
  if (text.empty()) return text;
  const std::size_t limit = size_limit(text.size());
  std::string out;
  std::size_t done = 0;
  step.pattern.for_each(text, scratch, [&](Regex::Match match) {
    out.append(text, done, match.begin - done).append(step.content);
    done = match.end;
    if (out.size() > limit)
      fail(ErrorCode::kUnsupported, "normalizer Replace makes a text of {} bytes longer than {}", text.size(), limit);
  });
  return out.append(text, done);
}

std::string Normalizer::run(const Prepend& step, std::string text, RegexScratch&) {
  return text.empty() ? text : step.content + text;
}

std::string Normalizer::run(const Strip& step, std::string text, RegexScratch&) {
  std::size_t begin = 0, end = text.size();
  if (step.left) {
    for (std::size_t at = 0; at < end && utf8::is_white_space(utf8::next(text, at));) begin = at;
  }
  if (step.right) {
    while (end > begin) {
      std::size_t at = utf8::previous(text, end);
      const std::size_t before = at;
      if (!utf8::is_white_space(utf8::next(text, at))) break;
      end = before;
    }
  }
  return text.substr(begin, end - begin);
}

std::string Normalizer::apply(std::string_view text, RegexScratch& scratch) const {
  std::string out(text);
  const std::size_t limit = size_limit(text.size());
  for (const auto& step : steps_) {
    out = std::visit([&](const auto& s) { return run(s, std::move(out), scratch); }, step);
    if (out.size() > limit)
      fail(ErrorCode::kUnsupported, "the normalizer makes a text of {} bytes longer than {}", text.size(), limit);
  }
  return out;
}

}  // namespace dsmoe
