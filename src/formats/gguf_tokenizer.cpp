#include "formats/gguf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"

namespace dsmoe {

namespace {

using io::GgufMetadata;
using io::GgufValue;
using Json = nlohmann::json;

enum TokenType : std::int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

constexpr const char* kModel = "tokenizer.ggml.model";
constexpr const char* kPre = "tokenizer.ggml.pre";
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kTemplate = "tokenizer.chat_template";
constexpr const char* kJson = "tokenizer.huggingface.json";
constexpr const char* kConfigJson = "dsmoe.tokenizer_config_json";

[[noreturn]] void cannot_carry(const std::string& what) {
  fail(ErrorCode::kUnsupported,
       "GGUF cannot carry this tokenizer: {}; export the model without it (move tokenizer.json out of the folder) or keep "
       "the "
       "folder",
       what);
}

std::string merge_text(const Json& merge) {
  if (merge.is_string()) return merge.get<std::string>();
  return merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>();  // the newer form, a pair
}

struct Tokens {
  std::vector<std::string> texts;
  std::vector<std::int32_t> types;

  explicit Tokens(std::size_t size) : texts(size), types(size, kUnused) {
    for (std::size_t i = 0; i < size; ++i) texts[i] = fmt::format("[PAD{}]", i);
  }
  void set(std::int64_t id, std::string text, std::int32_t type) {
    if (id < 0 || id >= static_cast<std::int64_t>(texts.size()))
      cannot_carry(fmt::format("token {} is outside the model's vocabulary of {}", id, texts.size()));
    texts[static_cast<std::size_t>(id)] = std::move(text);
    types[static_cast<std::size_t>(id)] = type;
  }
};

// Names the pipeline, after what the format takes for granted is seen to be so.
std::string pipeline_name(const Json& file) {
  const Json pre = file.value("pre_tokenizer", Json());
  const std::string name = pre.is_object() ? pre_tokenizer_name(pre.dump()) : "";
  if (name.empty()) cannot_carry("its pre_tokenizer is none of those with a name there");
  const Json normalizer = file.value("normalizer", Json());
  if (!normalizer.is_null() && !normalizer.value("normalizers", Json::array({0})).empty())
    cannot_carry("it has a normalizer, which is not known there");
  // Readers decide by the name whether a piece that is a token as a whole is left so.
  const bool ignore_merges = file.at("model").value("ignore_merges", Json(false)) == Json(true);
  if (ignore_merges != (name == "llama-bpe"))
    cannot_carry(fmt::format("ignore_merges {} does not go with {}", ignore_merges, name));
  return name;
}

AddedToken added_token(std::int32_t id, const std::string& text, bool special) {
  return {.id = id, .content = text, .special = special};
}

TokenizerParts read_parts(const GgufMetadata& m) {
  TokenizerParts parts;
  const std::string pre = m.text(kPre);
  parts.pre_tokenizer = pre_tokenizer_json(pre == "llama3" || pre == "llama-v3" ? "llama-bpe" : pre);
  parts.ignore_merges = pre.starts_with("llama");
  parts.vocab = m.texts(kTokens);
  parts.merges = m.texts(kMerges);
  std::vector<std::int64_t> types(parts.vocab.size(), kNormal);
  if (m.contains(kTypes)) types = m.integers(kTypes);
  if (types.size() != parts.vocab.size())
    fail(ErrorCode::kFormat, "{}: {} tokens but {} token types", m.where(), parts.vocab.size(), types.size());
  const auto named = [&](const char* key) -> std::string {
    if (!m.contains(key)) return {};
    const std::int64_t id = m.integer(key);
    if (id < 0 || id >= static_cast<std::int64_t>(parts.vocab.size()))
      fail(ErrorCode::kFormat, "{}: {} is {}, but there are {} tokens", m.where(), key, id, parts.vocab.size());
    auto& type = types[static_cast<std::size_t>(id)];
    if (type != kUserDefined) type = kControl;
    return parts.vocab[static_cast<std::size_t>(id)];
  };
  parts.bos_token = named("tokenizer.ggml.bos_token_id");
  parts.eos_token = named("tokenizer.ggml.eos_token_id");
  parts.pad_token = named("tokenizer.ggml.padding_token_id");
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] == kUnused) parts.vocab[i].clear();
    if (types[i] == kControl || types[i] == kUserDefined || types[i] == kUnknown)
      parts.added_tokens.push_back(added_token(static_cast<std::int32_t>(i), parts.vocab[i], types[i] != kUserDefined));
    if (types[i] == kByte)
      fail(ErrorCode::kUnsupported, "{}: token {} stands for a single byte, which a byte-level vocabulary has none of",
           m.where(), i);
  }
  parts.add_bos = m.boolean("tokenizer.ggml.add_bos_token", parts.ignore_merges && !parts.bos_token.empty());
  parts.add_eos = m.boolean("tokenizer.ggml.add_eos_token", false);
  parts.chat_template = m.text(kTemplate, "");
  return parts;
}

}  // namespace

std::optional<Tokenizer> tokenizer_from_gguf(const GgufMetadata& m) {
  const std::string model = m.text(kModel, "none");
  if (model == "none" || model == "no_vocab") return std::nullopt;
  if (model != "gpt2")
    fail(ErrorCode::kUnsupported, "{}: tokenizer {} is not supported, only \"gpt2\" (byte-level BPE) is", m.where(),
         in_quotes(model));
  try {
    if (m.contains(kJson)) return Tokenizer::from_json(m.text(kJson), m.text(kConfigJson, ""));
    return Tokenizer::from_parts(read_parts(m));
  } catch (const Error& error) {
    const std::string what = error.what();
    throw Error(error.code(), what.starts_with(m.where()) ? what : m.where() + ": " + what);
  }
}

void put_no_tokenizer(GgufMetadata& m) { m.set(kModel, GgufValue::string("no_vocab")); }

void put_tokenizer(const Tokenizer& tokenizer, std::int64_t vocab_size, GgufMetadata& m) {
  const Json file = json_read::parse(tokenizer.to_json(), "tokenizer.json");
  const std::string name = pipeline_name(file);
  Tokens tokens(static_cast<std::size_t>(vocab_size));
  for (const auto& [text, id] : file.at("model").at("vocab").items()) tokens.set(id.get<std::int64_t>(), text, kNormal);
  for (const Json& t : file.value("added_tokens", Json::array())) {
    const auto id = t.at("id").get<std::int32_t>();
    tokens.set(id, t.at("content").get<std::string>(), tokenizer.is_special(id) ? kControl : kUserDefined);
  }
  std::vector<std::string> merges;
  for (const Json& merge : file.at("model").at("merges")) merges.push_back(merge_text(merge));

  const std::vector<std::int32_t> frame = tokenizer.encode("");
  const bool bos = tokenizer.bos_id() && !frame.empty() && frame.front() == *tokenizer.bos_id();
  const bool eos = tokenizer.eos_id() && frame.size() > (bos ? 1u : 0u) && frame.back() == *tokenizer.eos_id();
  if (frame.size() != static_cast<std::size_t>(bos) + static_cast<std::size_t>(eos))
    cannot_carry("it puts other tokens than bos and eos around a text");

  m.set(kModel, GgufValue::string("gpt2"));
  m.set(kPre, GgufValue::string(name));
  m.set(kTokens, GgufValue::strings(tokens.texts));
  m.set(kTypes, GgufValue::i32s(tokens.types));
  m.set(kMerges, GgufValue::strings(merges));
  const auto put_id = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) m.set(key, GgufValue::u32(static_cast<std::uint32_t>(*id)));
  };
  put_id("tokenizer.ggml.bos_token_id", tokenizer.bos_id());
  put_id("tokenizer.ggml.eos_token_id", tokenizer.eos_id());
  put_id("tokenizer.ggml.padding_token_id", tokenizer.pad_id());
  m.set("tokenizer.ggml.add_bos_token", GgufValue::boolean(bos));
  m.set("tokenizer.ggml.add_eos_token", GgufValue::boolean(eos));
  if (!tokenizer.chat_template().empty()) m.set(kTemplate, GgufValue::string(tokenizer.chat_template()));
  m.set(kJson, GgufValue::string(tokenizer.to_json()));
  if (!tokenizer.config_json().empty()) m.set(kConfigJson, GgufValue::string(tokenizer.config_json()));
}

}  // namespace dsmoe
