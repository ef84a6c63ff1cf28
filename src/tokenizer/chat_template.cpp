#include "dsmoe/chat_template.h"

#include <algorithm>

#include "core/fail.h"
#include "core/utf8.h"
#include "tokenizer/jinja_render.h"

namespace dsmoe {

struct ChatTemplate::Impl {
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::string_view text) : impl_(std::make_shared<const Impl>(Impl{jinja::parse(text)})) {}

namespace {

// Some templates write '<|' + message['role'] + '|>', so the usual roles are the template's own words.
bool is_known_role(std::string_view role) {
  constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool", "developer", "function"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

}  // namespace

ChatText ChatTemplate::render(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  // Templates look at characters, so ill-formed text is repaired here, as encode() would do later.
  const auto own = [](const std::string& s) { return MarkedText(utf8::replace_invalid(s)); };
  const auto foreign = [](const std::string& s) { return MarkedText::of_message(utf8::replace_invalid(s)); };
  jinja::List list;
  for (const ChatMessage& message : messages) {
    jinja::Dict entry{{"role", is_known_role(message.role) ? own(message.role) : foreign(message.role)},
                      {"content", message.no_content ? jinja::Value(jinja::None{}) : foreign(message.content)}};
    if (!message.tool_calls.empty())
      entry.emplace_back("tool_calls", jinja::value_of_json(message.tool_calls, "tool_calls"));
    if (!message.tool_call_id.empty()) entry.emplace_back("tool_call_id", foreign(message.tool_call_id));
    if (!message.name.empty()) entry.emplace_back("name", foreign(message.name));
    list.push_back(std::move(entry));
  }
  jinja::Value tools = jinja::None{};
  if (!options.tools.empty()) tools = jinja::value_of_json(options.tools, "tools");
  const MarkedText out = jinja::render(impl_->block, {{"messages", std::move(list)},
                                                      {"bos_token", own(options.bos_token)},
                                                      {"eos_token", own(options.eos_token)},
                                                      {"add_generation_prompt", options.add_generation_prompt},
                                                      {"tools", std::move(tools)},
                                                      {"documents", jinja::None{}}});
  return {out.bytes(), out.marks()};
}

ChatText ChatText::from(std::size_t begin) const {
  const MarkedText part = MarkedText::part_of(text.substr(begin), from_messages, begin);
  return {part.bytes(), part.marks()};
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatText& chat) {
  return tokenizer.encode(chat.text, {.add_bos = false, .add_eos = false, .plain = chat.from_messages});
}

ChatOptions chat_options(const Tokenizer& tokenizer, bool add_generation_prompt) {
  ChatOptions options;
  if (const auto id = tokenizer.bos_id()) options.bos_token = tokenizer.bytes(*id);
  if (const auto id = tokenizer.eos_id()) options.eos_token = tokenizer.bytes(*id);
  options.add_generation_prompt = add_generation_prompt;
  return options;
}

ChatText render_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages, bool add_generation_prompt) {
  require(!tokenizer.chat_template().empty(), "this model comes without a chat template (it may be a base model)");
  return ChatTemplate(tokenizer.chat_template()).render(messages, chat_options(tokenizer, add_generation_prompt));
}

}  // namespace dsmoe
