// Turns a conversation into the text that a chat model was trained on, by the template that comes with the model.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dsmoe/tokenizer.h"

namespace dsmoe {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"; the template decides what it knows
  std::string content;
};

struct ChatOptions {
  std::string bos_token;
  std::string eos_token;
  bool add_generation_prompt = true;  // end where the assistant's answer begins
};

// The part of Jinja that chat templates use: if, for, set, namespaces, string and list operations (docs in
// src/tokenizer/jinja_parser.h), with the white-space rules that Hugging Face renders with. Anything else is refused
// with its name and place, when the template is read.
class ChatTemplate {
 public:
  explicit ChatTemplate(std::string_view text);
  // A template may refuse a conversation (raise_exception); its message is then that of the Error.
  std::string render(std::span<const ChatMessage> messages, const ChatOptions& options) const;

  struct Impl;

 private:
  std::shared_ptr<const Impl> impl_;
};

// With the tokenizer's own template and tokens. The text already holds the bos token if there is to be one: encode it
// with add_bos = false.
std::string render_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                        bool add_generation_prompt = true);

}  // namespace dsmoe
