#include "dsmoe/chat_template.h"

#include "core/fail.h"
#include "core/utf8.h"
#include "tokenizer/jinja_render.h"

namespace dsmoe {

struct ChatTemplate::Impl {
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::string_view text) : impl_(std::make_shared<const Impl>(Impl{jinja::parse(text)})) {}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  // Templates look at characters, so ill-formed text is repaired here, as encode() would do later.
  const auto text = [](const std::string& s) { return jinja::Value(utf8::replace_invalid(s)); };
  jinja::List list;
  for (const ChatMessage& message : messages)
    list.push_back(jinja::Dict{{"role", text(message.role)}, {"content", text(message.content)}});
  return jinja::render(impl_->block, {{"messages", std::move(list)},
                                      {"bos_token", text(options.bos_token)},
                                      {"eos_token", text(options.eos_token)},
                                      {"add_generation_prompt", options.add_generation_prompt},
                                      {"tools", jinja::None{}},
                                      {"documents", jinja::None{}}});
}

std::string render_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages, bool add_generation_prompt) {
  require(!tokenizer.chat_template().empty(), "this model comes without a chat template (it may be a base model)");
  ChatOptions options;
  if (const auto id = tokenizer.bos_id()) options.bos_token = tokenizer.bytes(*id);
  if (const auto id = tokenizer.eos_id()) options.eos_token = tokenizer.bytes(*id);
  options.add_generation_prompt = add_generation_prompt;
  return ChatTemplate(tokenizer.chat_template()).render(messages, options);
}

}  // namespace dsmoe
