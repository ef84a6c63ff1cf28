#include "formats/gguf_pipeline.h"

#include <nlohmann/json.hpp>

#include "core/fail.h"
#include "core/json_read.h"
#include "dsmoe/tokenizer.h"

namespace dsmoe {

namespace {

using Json = nlohmann::json;

bool is_nfc(const Json& normalizer) {
  if (normalizer.value("type", "") != "Sequence") return normalizer.value("type", "") == "NFC";
  const Json parts = normalizer.value("normalizers", Json::array());
  return parts.size() == 1 && parts[0].is_object() && is_nfc(parts[0]);
}

}  // namespace

void cannot_carry(const std::string& what) {
  fail(ErrorCode::kUnsupported,
       "GGUF cannot carry this tokenizer: {}; export the model without it (move tokenizer.json out of the folder) or keep "
       "the folder",
       what);
}

bool implies_nfc(std::string_view pre) { return pre == "qwen2" || pre == "hunyuan" || pre == "olmo"; }

bool implies_ranks(std::string_view pre) { return pre == "kimi-k2" || pre == "hunyuan"; }

bool implies_whole_tokens(std::string_view pre) { return pre.starts_with("llama") || implies_ranks(pre); }

std::string pipeline_name(const Json& file) {
  const Json pre = file.value("pre_tokenizer", Json());
  const std::string name = pre.is_object() ? pre_tokenizer_name(pre.dump()) : "";
  if (name.empty()) cannot_carry("its pre_tokenizer is none of those with a name there");
  const Json normalizer = file.value("normalizer", Json());
  const bool none = normalizer.is_null() || normalizer.value("normalizers", Json::array({0})).empty();
  const bool nfc = !none && is_nfc(normalizer);
  if (!none && !nfc) cannot_carry("it has a normalizer, which is not known there");
  // The name says whether texts are brought into NFC, and whether a piece that is a token as a whole is left so.
  const bool ignore_merges = file.at("model").value("ignore_merges", Json(false)) == Json(true);
  if (name == "llama-bpe" && !ignore_merges && !nfc) return "glm4";
  if (name == "gpt-2" && nfc && !ignore_merges) return "olmo";
  if (name == "qwen2" && nfc && ignore_merges) return "hunyuan";
  if (nfc != implies_nfc(name)) cannot_carry(fmt::format("its normalizer does not go with {}", name));
  if (ignore_merges != implies_whole_tokens(name))
    cannot_carry(fmt::format("ignore_merges {} does not go with {}", ignore_merges, name));
  return name;
}

bool prefix_space(const Json& file) {
  const Json pre = file.value("pre_tokenizer", Json()), normalizer = file.value("normalizer", Json());
  const auto text = [](const Json& part, const char* key) {
    return part.is_object() ? json_read::get_or<std::string>(part, key, "", "tokenizer.json") : std::string();
  };
  const auto type = [&](const Json& part) { return text(part, "type"); };
  const std::string mark = "\u2581";
  if (type(pre) == "Metaspace" && normalizer.is_null() && text(pre, "replacement") == mark &&
      !json_read::get_or(pre, "split", true, "tokenizer.json"))
    return text(pre, "prepend_scheme") != "never";
  // Braces alone would be a copy for one compiler and a list for another.
  const Json steps =
      type(normalizer) == "Sequence" ? normalizer.value("normalizers", Json::array()) : Json::array({normalizer});
  const bool prefix = !steps.empty() && type(steps[0]) == "Prepend" && text(steps[0], "prepend") == mark;
  const Json marks = steps.size() == (prefix ? 2u : 1u) ? steps.back() : Json();
  if (!pre.is_null() || type(marks) != "Replace" || text(marks, "content") != mark ||
      marks.value("pattern", Json()) != Json::object({{"String", " "}}))
    cannot_carry("only a mark for every space, and perhaps one in front, is known there for a vocabulary of characters");
  return prefix;
}

std::string pre_tokenizer_key(const std::string& pre) {
  if (pre == "llama3" || pre == "llama-v3" || pre == "glm4") return "llama-bpe";
  if (pre == "hunyuan") return "qwen2";
  if (pre == "minimax-m2") return "gpt-4o";
  return pre == "olmo" ? "gpt-2" : pre;
}

}  // namespace dsmoe
