// Documents as tokens of one endless stream, with the label of each and whether it is to be learned.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsmoe/chat_template.h"
#include "dsmoe/tokenizer.h"
#include "train/data/documents.h"

namespace dsmoe::train {

// A token as the cache keeps it: 20 bits of id, 11 of label, and one that says that the token is a target.
struct StreamToken {
  static constexpr std::uint32_t kMaxIds = 1u << 20, kMaxLabels = 1u << 11;
  std::uint32_t word = 0;

  static StreamToken make(std::int32_t id, std::uint32_t label, bool target) {
    return {static_cast<std::uint32_t>(id) | label << 20 | (target ? 1u << 31 : 0)};
  }
  std::int32_t id() const { return static_cast<std::int32_t>(word & (kMaxIds - 1)); }
  std::uint32_t label() const { return word >> 20 & (kMaxLabels - 1); }
  bool target() const { return word >> 31 != 0; }
};

class DocumentEncoder {
 public:
  explicit DocumentEncoder(Tokenizer tokenizer);

  // The rule at the seams: a document is its text's tokens behind those that the tokenizer puts before a text (bos),
  // then eos if the tokenizer has one. All are targets but the ones before the text. In a conversation only the
  // assistant's answers are targets, with what the template ends them with. Names of control tokens inside a text or a
  // message are text.
  void encode(const RawDocument& document, std::uint32_t label, std::vector<StreamToken>& out) const;

 private:
  void encode_text(const RawDocument& document, std::uint32_t label, std::vector<StreamToken>& out) const;
  void encode_chat(const RawDocument& document, std::uint32_t label, std::vector<StreamToken>& out) const;

  Tokenizer tokenizer_;
  std::vector<std::int32_t> before_;  // what the tokenizer puts before a text
  std::optional<ChatTemplate> template_;
};

}  // namespace dsmoe::train
