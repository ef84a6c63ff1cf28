// Text to token ids and back: Hugging Face BPE, byte-level or of characters with byte_fallback (SentencePiece's kind), with
// the pipeline that tokenizer.json describes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe {

// A token that is matched in the text itself, before BPE.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // also takes the white space before it
  bool rstrip = false;       // also takes the white space after it
  bool normalized = false;   // matched after normalization instead of before
  bool special = false;      // a control token: dropped by skip_special, not parsed without parse_special
};

// What a tokenizer is made of, for sources other than tokenizer.json (GGUF, a freshly trained vocabulary).
struct TokenizerParts {
  std::vector<std::string> vocab;        // by id, in the byte-level alphabet (" a" is "Ġa"); "" where there is no token
  std::vector<std::string> merges;       // "left right", the most important first
  std::vector<AddedToken> added_tokens;  // their ids may lie in vocab (with the same text or "") or beyond it
  std::string pre_tokenizer;             // as in tokenizer.json; see pre_tokenizer_json()
  bool nfc = false;                      // texts are brought into Unicode's form NFC first
  // Tokens are characters: " a" is "▁a" in vocab, "<0x0A>" is a byte. There is no pre_tokenizer and no nfc then.
  bool byte_fallback = false;
  bool prefix_space = false;                               // of characters: a text gets a space in front
  bool ignore_merges = false;                              // a piece that is a token as a whole becomes that token
  std::string bos_token, eos_token, pad_token, unk_token;  // "" for none
  bool add_bos = false;
  bool add_eos = false;
  std::string chat_template;
};

// The "pre_tokenizer" value of tokenizer.json for a pipeline known by name: "deepseek-llm", "deepseek-coder",
// "deepseek-v3", "llama-bpe", "glm4", "qwen2", "hunyuan", "minimax-m2", "kimi-k2", "gpt-4o", "gpt-2", "olmo", "gigachat"
// (the names that GGUF files use).
std::string pre_tokenizer_json(std::string_view name);
// The reverse, for the "pre_tokenizer" value of any tokenizer.json: the name of a pipeline that does the same; "" when
// there is none among the known ones.
std::string pre_tokenizer_name(std::string_view json);

// Bytes [begin, end) of a text.
struct TextRange {
  std::size_t begin = 0, end = 0;
};

// A control token is one that is marked as special, or that is written like one (<|...|>, <｜...｜>) and was added without
// that mark. Only parse_special makes them from text; other added tokens are found in any text.
struct EncodeOptions {
  std::optional<bool> add_bos;  // unset: as the tokenizer's files say
  std::optional<bool> add_eos;
  bool parse_special = true;  // false: control tokens in the text are plain text (for untrusted input)
  // With parse_special: ranges of untrusted input, ascending and apart, in a text that is valid UTF-8. A control token that
  // would have a byte in one of them is plain text. Everything else is as if they were not there: words and merges do not
  // end at a range's border.
  std::span<const TextRange> plain = {};
};

struct DecodeOptions {
  bool skip_special = false;
  bool continues = false;  // the ids go on with a text, so their first word keeps its space where a text's loses it
};

// A handle: copying it is cheap, and all const functions may be called from several threads at once.
class Tokenizer {
 public:
  // A folder with tokenizer.json or, of a few families, tiktoken's ranks (tiktoken.model, hy.tiktoken), or such a file
  // itself; tokenizer_config.json and chat_template.jinja are read when they lie beside it. Whatever part of the pipeline
  // is not supported is refused by its name.
  static Tokenizer load(const std::filesystem::path& path);
  // The texts of tokenizer.json, tokenizer_config.json and chat_template.jinja; the last wins over a template in the
  // second.
  static Tokenizer from_json(std::string tokenizer_json, std::string tokenizer_config_json = {},
                             std::string chat_template_jinja = {});
  static Tokenizer from_parts(const TokenizerParts& parts);

  // Each ill-formed part of the text counts as U+FFFD.
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Always well-formed UTF-8: bytes that are no character become U+FFFD. An id without a token adds nothing.
  std::string decode(std::span<const std::int32_t> ids, const DecodeOptions& options = {}) const;

  // decode() concatenates these, without the very first space where a text's first word has one; may be part of a
  // character.
  std::string_view bytes(std::int32_t id) const;
  std::string piece(std::int32_t id) const;  // the same for display: a byte that is no character as <0xE4>

  std::int32_t vocab_size() const;  // the highest id + 1
  std::optional<std::int32_t> bos_id() const;
  std::optional<std::int32_t> eos_id() const;
  std::optional<std::int32_t> pad_id() const;
  std::optional<std::int32_t> id_of(std::string_view token) const;  // as tokenizer.json writes it ("Ġa")
  bool is_special(std::int32_t id) const;
  bool has_merges(std::span<const std::string> merges) const;  // "left right": these, all of them, in this order
  const std::string& pre_tokenizer() const;                    // the "pre_tokenizer" value of tokenizer.json, "" for none

  const std::string& chat_template() const;  // "" for none; see chat_template.h
  const std::string& to_json() const;        // tokenizer.json, to the byte as it was read
  const std::string& config_json() const;    // tokenizer_config.json, "" for none
  // Writes those files and chat_template.jinja over what is there, and removes those that this tokenizer does not have.
  void save(const std::filesystem::path& folder) const;

 private:
  friend class StreamDecoder;
  struct Impl;
  bool strips_first(const DecodeOptions& options) const;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// Decodes ids as they come. The concatenated parts equal decode() of all ids, and no part ends inside a character.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, DecodeOptions options = {})
      : tokenizer_(std::move(tokenizer)), options_(options) {}
  std::string push(std::int32_t id);
  std::string finish();  // the pending text; then ready for another text

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string held_;  // at most 3 bytes between calls
  bool begun_ = false;
};

}  // namespace dsmoe
