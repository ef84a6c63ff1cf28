// What a Tokenizer holds, in the order in which a text passes through it.
#pragma once

#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/tokenizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/encoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/vocab.h"

namespace dsmoe {

std::string tokenizer_json(const TokenizerParts& parts);

// "added_tokens_decoder" of tokenizer_config.json: {"100000": {"content": ...}, ...}.
std::vector<AddedToken> read_config_tokens(const nlohmann::json& config);

struct Tokenizer::Impl {
  Impl(std::string tokenizer_json, std::string config_json);

  std::string json_text, config_text, pre_tokenizer_text;
  std::string chat_template, jinja_file;  // jinja_file: chat_template.jinja, "" for none

  Vocab vocab;
  AddedTokens raw_tokens;  // looked for in the text as it comes
  Normalizer normalizer;
  AddedTokens normalized_tokens;  // looked for after normalization
  std::optional<Metaspace> metaspace;
  std::optional<Encoder> encoder;
  Frame frame;
  std::optional<std::int32_t> bos, eos, pad;

  // States are lent to one call at a time, and kept for their caches.
  std::unique_ptr<EncodeState> borrow_state() const;
  void return_state(std::unique_ptr<EncodeState> state) const;

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<EncodeState>> states_;
};

}  // namespace dsmoe
