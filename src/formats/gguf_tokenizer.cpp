#include "formats/gguf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/log.h"
#include "core/printable.h"
#include "formats/gguf_pipeline.h"
#include "formats/gguf_scores.h"
#include "tokenizer/rank_merges.h"

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
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kUnk = "tokenizer.ggml.unknown_token_id";
constexpr const char* kSpacePrefix = "tokenizer.ggml.add_space_prefix";
constexpr const char* kCharacters = "llama";  // a vocabulary of characters, in kModel
constexpr const char* kTemplate = "tokenizer.chat_template";
constexpr const char* kJson = "tokenizer.huggingface.json";
constexpr const char* kConfigJson = "dsmoe.tokenizer_config_json";
constexpr const char* kOurs = "dsmoe.config_json";  // files of this program have it
constexpr const char* kBos = "tokenizer.ggml.bos_token_id";
constexpr const char* kEos = "tokenizer.ggml.eos_token_id";
constexpr const char* kPad = "tokenizer.ggml.padding_token_id";
constexpr const char* kAddBos = "tokenizer.ggml.add_bos_token";
constexpr const char* kAddEos = "tokenizer.ggml.add_eos_token";

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

bool of_characters(const GgufMetadata& m) { return m.text(kModel) == kCharacters; }

// Tokens that may be joined, or be what others are joined to: neither those found in a text before that, nor bytes.
std::vector<bool> joining(std::span<const std::int64_t> types) {
  std::vector<bool> joins;
  for (const std::int64_t type : types) joins.push_back(type == kNormal);
  return joins;
}

void read_character_pieces(const GgufMetadata& m, std::span<const std::int64_t> types, TokenizerParts& parts) {
  const std::vector<double> scores = m.numbers(kScores);
  if (scores.size() != parts.vocab.size())
    fail(ErrorCode::kFormat, "{}: {} tokens but {} scores", m.where(), parts.vocab.size(), scores.size());
  parts.merges = merges_of_scores(parts.vocab, scores, joining(types));
  parts.prefix_space = m.boolean(kSpacePrefix, true);
}

TokenizerParts read_parts(const GgufMetadata& m) {
  TokenizerParts parts;
  parts.byte_fallback = of_characters(m);
  const std::string pre = parts.byte_fallback ? "" : m.text(kPre);
  if (!parts.byte_fallback) parts.pre_tokenizer = pre_tokenizer_json(pre_tokenizer_key(pre));
  parts.ignore_merges = implies_whole_tokens(pre);
  parts.nfc = implies_nfc(pre);
  parts.vocab = m.texts(kTokens);
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
  parts.bos_token = named(kBos);
  parts.eos_token = named(kEos);
  parts.pad_token = named(kPad);
  if (parts.byte_fallback) {
    parts.unk_token = named(kUnk);
    read_character_pieces(m, types, parts);
  } else {
    const bool rebuilt = implies_ranks(pre) && !m.contains(kMerges);  // llama.cpp takes such files of kimi-k2
    parts.merges = rebuilt ? merges_of_ranks(parts.vocab, joining(types)) : m.texts(kMerges);
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] == kUnused) parts.vocab[i].clear();
    if (types[i] == kControl || types[i] == kUserDefined || types[i] == kUnknown)
      parts.added_tokens.push_back({.id = static_cast<std::int32_t>(i),
                                    .content = parts.vocab[i],
                                    .normalized = pre == "hunyuan",  // its code brings the whole text into NFC first
                                    .special = types[i] != kUserDefined});
    if (types[i] == kByte && !parts.byte_fallback)
      fail(ErrorCode::kUnsupported, "{}: token {} stands for a single byte, which a byte-level vocabulary has none of",
           m.where(), i);
  }
  parts.add_bos = m.boolean(kAddBos, (pre.starts_with("llama") || parts.byte_fallback) && !parts.bos_token.empty());
  parts.add_eos = m.boolean(kAddEos, false);
  parts.chat_template = m.text(kTemplate, "");
  return parts;
}

// What a tokenizer puts around a text.
struct Ends {
  bool bos = false, eos = false, others = false;
};

Ends ends_of(const Tokenizer& tokenizer) {
  const std::vector<std::int32_t> frame = tokenizer.encode("");
  Ends ends;
  ends.bos = tokenizer.bos_id() && !frame.empty() && frame.front() == *tokenizer.bos_id();
  ends.eos = tokenizer.eos_id() && frame.size() > (ends.bos ? 1u : 0u) && frame.back() == *tokenizer.eos_id();
  ends.others = frame.size() != static_cast<std::size_t>(ends.bos) + static_cast<std::size_t>(ends.eos);
  return ends;
}

std::vector<std::string> merge_texts(const Json& file) {
  std::vector<std::string> merges;
  for (const Json& merge : file.at("model").at("merges")) merges.push_back(merge_text(merge));
  return merges;
}

// Of a vocabulary of characters, whose merges are scores here.
bool same_scores(const GgufMetadata& m, const Json& file) {
  const std::vector<std::string> tokens = m.texts(kTokens);
  const std::vector<std::int64_t> types = m.integers(kTypes);
  if (!m.contains(kScores) || tokens.size() != types.size()) return false;
  const std::vector<float> ours = scores_of_merges(tokens, merge_texts(file), joining(types));
  const std::vector<double> theirs = m.numbers(kScores);
  return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end()) &&
         prefix_space(file) == m.boolean(kSpacePrefix, true);
}

// Whether the format's own keys still describe the vocabulary, merges and pre-tokenizer of tokenizer.json.
bool same_model(const GgufMetadata& m, const Tokenizer& tokenizer) {
  const std::string& pre = tokenizer.pre_tokenizer();
  const bool characters = of_characters(m);
  if (!characters && m.contains(kPre) && (pre.empty() ? "" : pre_tokenizer_name(pre)) != pre_tokenizer_key(m.text(kPre)))
    return false;
  if (!characters && m.contains(kMerges) && !tokenizer.has_merges(m.texts(kMerges))) return false;
  if (characters && !same_scores(m, json_read::parse(tokenizer.to_json(), "tokenizer.json"))) return false;
  const std::vector<std::string> texts = m.texts(kTokens);
  const std::vector<std::int64_t> types = m.integers(kTypes);
  if (types.size() != texts.size() || tokenizer.vocab_size() > static_cast<std::int64_t>(texts.size())) return false;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const std::string_view bytes = tokenizer.bytes(id);
    // A token that tokenizer_config.json alone makes special is a normal one here.
    if (tokenizer.is_special(id) ? types[i] == kUserDefined : types[i] == kControl) return false;
    if (bytes.empty() ? types[i] != kUnused : tokenizer.id_of(texts[i]) != id) return false;
  }
  return true;
}

// A post_processor that puts these tokens around a text; `texts` are as tokenizer.json writes them.
Json post_processor(const Tokenizer& tokenizer, const std::vector<std::string>& texts, bool bos, bool eos) {
  Json before = Json::array(), after = before, names = Json::object();
  const auto put = [&](Json& side, std::int32_t id) {
    const std::string& text = texts.at(static_cast<std::size_t>(id));
    side.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    names[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
  };
  if (bos) put(before, *tokenizer.bos_id());
  if (eos) put(after, *tokenizer.eos_id());
  const auto sequence = [](const char* name, int type) { return Json{{"Sequence", {{"id", name}, {"type_id", type}}}}; };
  Json single = before, pair = before;
  single.push_back(sequence("A", 0));
  pair.push_back(sequence("A", 0));
  pair.push_back(sequence("B", 1));
  single.insert(single.end(), after.begin(), after.end());
  pair.insert(pair.end(), after.begin(), after.end());
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", names}};
}

// The tokenizer of the file's copies of tokenizer.json and tokenizer_config.json, changed where the format's own keys say
// something else: a file that was edited means what it says there.
Tokenizer with_keys(const GgufMetadata& m, const Tokenizer& tokenizer) {
  std::string jinja = m.text(kTemplate, "");
  if (jinja == tokenizer.chat_template()) jinja.clear();
  const std::string& text = tokenizer.config_json();
  auto config = text.empty() ? json_read::OrderedJson::object()
                             : json_read::parse_object<json_read::OrderedJson>(text, "tokenizer_config.json");
  bool changed = false;
  const std::vector<std::string> texts = m.texts(kTokens);
  const auto name = [&](const char* key, const char* field, std::optional<std::int32_t> now) {
    if (!m.contains(key) || m.integer(key) == now.value_or(-1)) return;
    const std::int64_t id = m.integer(key);
    const auto tokens = std::min<std::int64_t>(tokenizer.vocab_size(), static_cast<std::int64_t>(texts.size()));
    if (id < 0 || id >= tokens)
      fail(ErrorCode::kFormat, "{}: {} is {}, but there are {} tokens", m.where(), key, id, tokens);
    config[field] = texts[static_cast<std::size_t>(id)];
    changed = true;
  };
  name(kBos, "bos_token", tokenizer.bos_id());
  name(kEos, "eos_token", tokenizer.eos_id());
  name(kPad, "pad_token", tokenizer.pad_id());
  const Ends now = ends_of(tokenizer);
  const bool bos = m.boolean(kAddBos, now.bos), eos = m.boolean(kAddEos, now.eos);
  if (bos != now.bos || eos != now.eos) {
    config["add_bos_token"] = bos, config["add_eos_token"] = eos;
    changed = true;
  }
  if (!changed && jinja.empty()) return tokenizer;
  Tokenizer edited = Tokenizer::from_json(tokenizer.to_json(), changed ? config.dump(2) + "\n" : text, jinja);
  const Ends then = ends_of(edited);
  if (then.bos == bos && then.eos == eos) return edited;
  // tokenizer.json says itself what stands around a text, and its word is the one that counts.
  Json file = json_read::parse(edited.to_json(), "tokenizer.json");
  file["post_processor"] = post_processor(edited, texts, bos, eos);
  return Tokenizer::from_json(file.dump(), edited.config_json(), jinja);
}

void put_merges(const Json& file, const Tokens& tokens, GgufMetadata& m) {
  m.set(kModel, GgufValue::string("gpt2"));
  m.set(kPre, GgufValue::string(pipeline_name(file)));
  m.set(kTokens, GgufValue::strings(tokens.texts));
  m.set(kMerges, GgufValue::strings(merge_texts(file)));
}

void put_scores(const Json& file, Tokens& tokens, GgufMetadata& m) {
  const Json unk = file.at("model").value("unk_token", Json());
  std::int64_t unknown = -1;
  for (std::size_t i = 0; unk.is_string() && i < tokens.texts.size(); ++i)
    if (tokens.texts[i] == unk.get<std::string>()) unknown = static_cast<std::int64_t>(i), tokens.types[i] = kUnknown;
  const std::vector<std::int64_t> types(tokens.types.begin(), tokens.types.end());
  const bool prefix = prefix_space(file);
  const std::vector<float> scores = scores_of_merges(tokens.texts, merge_texts(file), joining(types));
  if (scores.empty())
    cannot_carry("it joins only some of the tokens whose sum is a token, where readers of such files join them all");
  m.set(kModel, GgufValue::string(kCharacters));
  m.set(kPre, GgufValue::string("default"));
  m.set(kTokens, GgufValue::strings(tokens.texts));
  m.set(kScores, GgufValue::f32s(scores));
  m.set(kSpacePrefix, GgufValue::boolean(prefix));
  if (unknown >= 0) m.set(kUnk, GgufValue::u32(static_cast<std::uint32_t>(unknown)));
}

}  // namespace

std::optional<Tokenizer> tokenizer_from_gguf(const GgufMetadata& m) {
  const std::string model = m.text(kModel, "none");
  if (model == "none" || model == "no_vocab") return std::nullopt;
  if (model != "gpt2" && model != kCharacters)
    fail(ErrorCode::kUnsupported, "{}: tokenizer {} is not supported, only \"gpt2\" (byte-level BPE) and \"{}\" are",
         m.where(), in_quotes(model), kCharacters);
  try {
    if (m.contains(kJson)) {
      const Tokenizer tokenizer = Tokenizer::from_json(m.text(kJson), m.text(kConfigJson, ""));
      const bool same = same_model(m, tokenizer);
      if (!same && !m.contains(kOurs))
        note("{}: its tokens, merges or pre-tokenizer are not those of its {}, which is used", m.where(), kJson);
      if (same || !m.contains(kOurs)) return with_keys(m, tokenizer);
    }
    return Tokenizer::from_parts(read_parts(m));
  } catch (const Error& error) {
    const std::string what = error.what();
    throw Error(error.code(), what.starts_with(m.where()) ? what : m.where() + ": " + what);
  }
}

void put_no_tokenizer(GgufMetadata& m) { m.set(kModel, GgufValue::string("no_vocab")); }

void put_tokenizer(const Tokenizer& tokenizer, std::int64_t vocab_size, GgufMetadata& m) {
  const Json file = json_read::parse(tokenizer.to_json(), "tokenizer.json");
  const bool characters = file.at("model").value("byte_fallback", Json()) == Json(true);
  Tokens tokens(static_cast<std::size_t>(vocab_size));
  for (const auto& [text, id] : file.at("model").at("vocab").items()) {
    const bool byte = characters && text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
    tokens.set(id.get<std::int64_t>(), text, byte ? kByte : kNormal);
  }
  for (const Json& t : file.value("added_tokens", Json::array())) {
    const auto id = t.at("id").get<std::int32_t>();
    tokens.set(id, t.at("content").get<std::string>(), tokenizer.is_special(id) ? kControl : kUserDefined);
  }
  const Ends ends = ends_of(tokenizer);
  if (ends.others) cannot_carry("it puts other tokens than bos and eos around a text");
  characters ? put_scores(file, tokens, m) : put_merges(file, tokens, m);
  m.set(kTypes, GgufValue::i32s(tokens.types));
  const auto put_id = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) m.set(key, GgufValue::u32(static_cast<std::uint32_t>(*id)));
  };
  put_id(kBos, tokenizer.bos_id());
  put_id(kEos, tokenizer.eos_id());
  put_id(kPad, tokenizer.pad_id());
  m.set(kAddBos, GgufValue::boolean(ends.bos));
  m.set(kAddEos, GgufValue::boolean(ends.eos));
  if (!tokenizer.chat_template().empty()) m.set(kTemplate, GgufValue::string(tokenizer.chat_template()));
  m.set(kJson, GgufValue::string(tokenizer.to_json()));
  if (!tokenizer.config_json().empty()) m.set(kConfigJson, GgufValue::string(tokenizer.config_json()));
}

}  // namespace dsmoe
