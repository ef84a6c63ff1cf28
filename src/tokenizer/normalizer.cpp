#include "tokenizer/normalizer.h"

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "tokenizer/compose.h"

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
  } else if (type == "NFC") {
    steps_.emplace_back(Compose{});
  } else {
    fail(ErrorCode::kUnsupported, "{} {} is not supported (only Sequence, Replace, Prepend, Strip and NFC are)", kWhere,
         in_quotes(type));
  }
}

MarkedText Normalizer::run(const Replace& step, const MarkedText& text, RegexScratch& scratch) {
  if (text.size() == 0) return text;
  const std::size_t limit = size_limit(text.size());
  MarkedText out;
  std::size_t done = 0;
  step.pattern.for_each(text.bytes(), scratch, [&](Regex::Match match) {
    out.append(text, done, match.begin - done);
    out.append(text.marked(match.begin, match.end) ? MarkedText::of_message(step.content) : MarkedText(step.content));
    done = match.end;
    if (out.size() > limit)
      fail(ErrorCode::kUnsupported, "normalizer Replace makes a text of {} bytes longer than {}", text.size(), limit);
  });
  return std::move(out.append(text, done));
}

MarkedText Normalizer::run(const Prepend& step, const MarkedText& text, RegexScratch&) {
  return text.size() == 0 ? text : std::move(MarkedText(step.content).append(text));
}

MarkedText Normalizer::run(const Strip& step, const MarkedText& text, RegexScratch&) {
  const std::string& bytes = text.bytes();
  std::size_t begin = 0, end = bytes.size();
  if (step.left) {
    for (std::size_t at = 0; at < end && utf8::is_white_space(utf8::next(bytes, at));) begin = at;
  }
  if (step.right) {
    while (end > begin) {
      std::size_t at = utf8::previous(bytes, end);
      const std::size_t before = at;
      if (!utf8::is_white_space(utf8::next(bytes, at))) break;
      end = before;
    }
  }
  return text.substr(begin, end - begin);
}

MarkedText Normalizer::run(const Compose&, const MarkedText& text, RegexScratch&) {
  MarkedText out;
  std::size_t done = 0;  // up to here the text is in `out`
  each_composed_part(text.bytes(), [&](std::size_t begin, std::size_t end, std::string composed) {
    out.append(text, done, begin - done);
    out.append(text.marked(begin, end) ? MarkedText::of_message(std::move(composed)) : MarkedText(std::move(composed)));
    done = end;
  });
  return done == 0 ? text : std::move(out.append(text, done));
}

MarkedText Normalizer::apply(MarkedText text, RegexScratch& scratch) const {
  const std::size_t size = text.size(), limit = size_limit(size);
  for (const auto& step : steps_) {
    text = std::visit([&](const auto& s) { return run(s, text, scratch); }, step);
    if (text.size() > limit)
      fail(ErrorCode::kUnsupported, "the normalizer makes a text of {} bytes longer than {}", size, limit);
  }
  return text;
}

}  // namespace dsmoe
