#include "tokenizer/post_processor.h"

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"

namespace dsmoe {

namespace {

constexpr const char* kWhere = "tokenizer.json: post_processor";
constexpr int kMaxDepth = 8;           // of sequences in sequences
constexpr std::size_t kMaxFrame = 64;  // ids around a text

std::vector<std::int32_t> special_ids(const nlohmann::json& description, const std::string& name, const Vocab& vocab) {
  const auto& all = json_read::object(description, "special_tokens", kWhere);
  std::vector<std::int32_t> ids;
  for (const auto& id : json_read::array(json_read::object(all, name.c_str(), kWhere), "ids", kWhere)) {
    const auto number = json_read::try_as<std::int32_t>(id);
    if (!number || *number < 0 || *number >= vocab.size())
      fail(ErrorCode::kFormat, "{}: the special token {} has an id that is not in the vocabulary", kWhere, in_quotes(name));
    ids.push_back(*number);
  }
  return ids;
}

Frame read_template(const nlohmann::json& description, const Vocab& vocab) {
  Frame frame;
  frame.from_template = true;
  bool text_seen = false;
  for (const auto& part : json_read::array(description, "single", kWhere)) {
    if (!part.is_object()) fail(ErrorCode::kFormat, "{}: a part of the template is not an object", kWhere);
    if (json_read::find(part, "Sequence")) {
      const auto which = json_read::get<std::string>(part["Sequence"], "id", kWhere);
      if (which != "A" || text_seen)
        fail(ErrorCode::kUnsupported, "{}: a template with other than one text A is not supported", kWhere);
      text_seen = true;
      continue;
    }
    const auto name = json_read::get<std::string>(json_read::object(part, "SpecialToken", kWhere), "id", kWhere);
    auto& side = text_seen ? frame.suffix : frame.prefix;
    const auto ids = special_ids(description, name, vocab);
    side.insert(side.end(), ids.begin(), ids.end());
    if (side.size() > kMaxFrame) fail(ErrorCode::kUnsupported, "{}: more than {} special tokens", kWhere, kMaxFrame);
  }
  if (!text_seen) fail(ErrorCode::kFormat, "{}: a template without the text A", kWhere);
  return frame;
}

Frame read(const nlohmann::json& description, const Vocab& vocab, int depth) {
  if (description.is_null()) return {};
  if (!description.is_object() || depth > kMaxDepth)
    fail(ErrorCode::kFormat, "{}: not an object, or nested too deeply", kWhere);
  const auto type = json_read::get<std::string>(description, "type", kWhere);
  if (type == "ByteLevel") return {};  // it only moves offsets, which nobody asks for here
  if (type == "TemplateProcessing") return read_template(description, vocab);
  if (type != "Sequence")
    fail(ErrorCode::kUnsupported, "{} {} is not supported (only Sequence, ByteLevel and TemplateProcessing are)", kWhere,
         in_quotes(type));
  Frame frame;
  for (const auto& part : json_read::array(description, "processors", kWhere)) {
    const Frame outer = read(part, vocab, depth + 1);
    frame.from_template |= outer.from_template;
    frame.prefix.insert(frame.prefix.begin(), outer.prefix.begin(), outer.prefix.end());
    frame.suffix.insert(frame.suffix.end(), outer.suffix.begin(), outer.suffix.end());
    if (frame.prefix.size() > kMaxFrame || frame.suffix.size() > kMaxFrame)
      fail(ErrorCode::kUnsupported, "{}: more than {} special tokens", kWhere, kMaxFrame);
  }
  return frame;
}

}  // namespace

Frame read_post_processor(const nlohmann::json& description, const Vocab& vocab) { return read(description, vocab, 0); }

}  // namespace dsmoe
