// Turns a conversation into the text that a chat model was trained on, by the template that comes with the model.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/tokenizer.h"

namespace dsmoe {

struct ChatMessage {
  // "system", "user", "assistant", "tool", "developer" or "function": templates make control tokens of these. Another role
  // is text like the content.
  std::string role;
  std::string content;
  // For templates that know tools, as Hugging Face has them: JSON texts, "" for none.
  std::string tool_calls = {};  // an array of {"id", "type", "function": {"name", "arguments"}}
  std::string tool_call_id = {}, name = {};
  bool no_content = false;  // none instead of an empty text
};

struct ChatOptions {
  std::string bos_token;
  std::string eos_token;
  bool add_generation_prompt = true;  // end where the assistant's answer begins
  std::string tools = {};             // a JSON array of {"type": "function", "function": {...}}; "": none
};

// A conversation as a template writes it. Parts that come from messages are text, whatever they hold: only the template
// makes control tokens.
struct ChatText {
  std::string text;
  std::vector<TextRange> from_messages;  // ascending and apart

  ChatText from(std::size_t begin) const;  // the part that begins there
};

// The tokens of a rendered conversation. The template writes the bos token if there is to be one, so none is added, and no
// eos either.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatText& chat);

// The part of Jinja that chat templates use: if, for, set, namespaces, string and list operations (docs in
// src/tokenizer/jinja_parser.h), with the white-space rules that Hugging Face renders with. Anything else is refused
// with its name and place, when the template is read.
class ChatTemplate {
 public:
  explicit ChatTemplate(std::string_view text);
  // A template may refuse a conversation (raise_exception); its message is then that of the Error.
  ChatText render(std::span<const ChatMessage> messages, const ChatOptions& options) const;

  struct Impl;

 private:
  std::shared_ptr<const Impl> impl_;
};

// The options for this tokenizer: its bos and eos token.
ChatOptions chat_options(const Tokenizer& tokenizer, bool add_generation_prompt = true);

// With the tokenizer's own template and tokens.
ChatText render_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages, bool add_generation_prompt = true);

}  // namespace dsmoe
