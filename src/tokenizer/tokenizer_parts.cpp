// A tokenizer from its parts: they are written as tokenizer.json, which is then read like any other. One way to
// load, and what is saved is what was tested.
#include <set>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "tokenizer/tokenizer_impl.h"

namespace dsmoe {

namespace {

using json_read::Json;

const std::string& checked(const std::string& text, const char* what) {
  require(utf8::valid_prefix(text) == text.size(), "tokenizer parts: {} {} is not valid UTF-8", what, in_quotes(text));
  return text;
}

Json model_json(const TokenizerParts& parts, const std::set<std::int32_t>& added_ids) {
  Json vocab = Json::object();
  std::size_t plain = parts.vocab.size();  // added tokens behind the last other one need no entry
  const auto may_lack = [&](std::size_t id) {
    const std::string& text = parts.vocab[id];
    return text.empty() || (added_ids.contains(static_cast<std::int32_t>(id)) && text != parts.unk_token);
  };
  while (plain > 0 && may_lack(plain - 1)) --plain;
  // Those between others need one: Hugging Face numbers added tokens that the model lacks anew, behind the model's.
  for (std::size_t i = 0; i < plain; ++i) {
    if (parts.vocab[i].empty()) continue;
    const bool fresh = vocab.emplace(checked(parts.vocab[i], "token"), i).second;
    require(fresh, "tokenizer parts: the token {} occurs twice", in_quotes(parts.vocab[i]));
  }
  Json merges = Json::array();
  for (const std::string& merge : parts.merges) merges.push_back(checked(merge, "merge"));
  Json unk;
  if (!parts.unk_token.empty()) unk = checked(parts.unk_token, "unk_token");
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", unk},
          {"continuing_subword_prefix", nullptr},
          {"fuse_unk", false},
          {"end_of_word_suffix", nullptr},
          {"byte_fallback", parts.byte_fallback},
          {"ignore_merges", parts.ignore_merges},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

constexpr const char* kMark = "▁";

Json replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

// As SentencePiece's vocabularies are written.
Json space_marks(const TokenizerParts& parts) {
  Json steps = Json::array();
  if (parts.prefix_space) steps.push_back({{"type", "Prepend"}, {"prepend", kMark}});
  steps.push_back(replace(" ", kMark));
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

Json character_decoder(const TokenizerParts& parts) {
  Json steps = {replace(kMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (parts.prefix_space) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

std::string make_config(const TokenizerParts& parts) {
  Json config = {{"tokenizer_class", "LlamaTokenizerFast"},
                 {"add_bos_token", parts.add_bos},
                 {"add_eos_token", parts.add_eos},
                 {"clean_up_tokenization_spaces", false}};
  const auto put = [&](const char* key, const std::string& token) {
    if (!token.empty()) config[key] = checked(token, key);
  };
  put("bos_token", parts.bos_token);
  put("eos_token", parts.eos_token);
  put("pad_token", parts.pad_token);
  put("unk_token", parts.unk_token);
  put("chat_template", parts.chat_template);
  return config.dump(1);
}

}  // namespace

std::string tokenizer_json(const TokenizerParts& parts) {
  Json added = Json::array();
  std::set<std::int32_t> added_ids;
  for (const AddedToken& token : parts.added_tokens) {
    added.push_back({{"id", token.id},
                     {"content", checked(token.content, "added token")},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
    const bool fresh = added_ids.insert(token.id).second;
    require(token.id >= 0 && fresh, "tokenizer parts: added token {} has the id {}, which is negative or taken",
            in_quotes(token.content), token.id);
    const auto at = static_cast<std::size_t>(token.id);
    require(at >= parts.vocab.size() || parts.vocab[at].empty() || parts.vocab[at] == token.content,
            "tokenizer parts: id {} is the added token {} and another one in the vocabulary", token.id,
            in_quotes(token.content));
  }
  const Json nothing;
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", parts.byte_fallback ? space_marks(parts)
                     : parts.nfc         ? Json{{"type", "NFC"}}
                                         : nothing},
      {"pre_tokenizer",
       parts.byte_fallback ? nothing : json_read::parse_object(parts.pre_tokenizer, "tokenizer parts: pre_tokenizer")},
      {"post_processor", parts.byte_fallback ? nothing : byte_level},
      {"decoder", parts.byte_fallback ? character_decoder(parts) : byte_level},
      {"model", model_json(parts, added_ids)}};
  return file.dump();
}

Tokenizer Tokenizer::from_parts(const TokenizerParts& parts) {
  return from_json(tokenizer_json(parts), make_config(parts));
}

}  // namespace dsmoe
