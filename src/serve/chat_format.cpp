#include "serve/chat_format.h"

#include <fmt/format.h>

#include "core/fail.h"
#include "core/json_read.h"

namespace dsmoe::serve {

namespace {

using OrderedJson = json_read::OrderedJson;

// Words that no template has.
constexpr const char *kProbeName = "probed_function", *kProbeValue = "probed_value", *kProbeResult = "probed_result";

std::string probe_tools() {
  return fmt::format(
      R"([{{"type": "function", "function": {{"name": "{}", "description": "d", "parameters": {{"type": "object",
          "properties": {{"x": {{"type": "string", "description": "d"}}}}, "required": ["x"]}}}}}}])",
      kProbeName);
}

bool has(const ChatText& chat, const char* word) { return chat.text.find(word) != std::string::npos; }

std::string calls_json(const std::vector<CalledFunction>& calls, bool object_arguments) {
  OrderedJson out = OrderedJson::array();
  for (const CalledFunction& call : calls) {
    OrderedJson arguments = call.arguments;
    if (object_arguments) {
      try {
        arguments = json_read::parse<OrderedJson>(call.arguments, "arguments");
      } catch (const Error&) {  // a model wrote them: then they are text
      }
    }
    out.push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}});
  }
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

std::string written_calls(const CallSyntax& s, const std::vector<CalledFunction>& calls) {
  const auto marks = [&](std::string_view text) {
    std::string out;
    for (const char c : text) out += c != ' ' ? std::string(1, c) : *s.end ? "\n" : "";
    return out;
  };
  std::string out = marks(s.open);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const CalledFunction& c = calls[i];
    const std::string body = s.json() ? fmt::format(R"({{"name": "{}", "{}": {}}})", c.name, s.key, c.arguments)
                                      : c.name + marks(s.infix) + c.arguments;
    out += (i > 0 ? marks(s.between) : "") + marks(s.begin) + body + marks(s.end);
  }
  return out + marks(s.close);
}

std::string tools_notice(const CallSyntax& syntax, const std::vector<std::string>& listed) {
  std::string out = "You can call functions. These are there, each with a JSON schema of its parameters:\n";
  for (const std::string& tool : listed) out += tool + "\n";
  return out + "To call a function, write its name and its arguments in this form, and end your answer:\n" +
         written_calls(syntax, {{"", "NAME", "{\"PARAMETER\": VALUE}"}}) +
         "\nThe next message has what it returned. If no function helps, answer in words.";
}

ChatFormat::ChatFormat(const Tokenizer& tokenizer)
    : template_(tokenizer.chat_template()),
      options_(chat_options(tokenizer)),
      syntax_(syntax_of_template(tokenizer.chat_template())) {
  const Message user{{"user", "u"}};
  const CalledFunction call{"call12345", kProbeName, fmt::format("{{\"x\": \"{}\"}}", kProbeValue)};
  const std::vector<Message> conversation = {user,
                                             {{.role = "assistant", .content = {}, .no_content = true}, {call}},
                                             {{.role = "tool", .content = kProbeResult, .tool_call_id = call.id}}};
  const auto renders = [&](const std::vector<Message>& messages, const std::string& tools) {
    try {
      const ChatText out = rendered(messages, tools);
      return has(out, kProbeName) && (messages.size() == 1 || (has(out, kProbeValue) && has(out, kProbeResult)));
    } catch (const Error&) {
      return false;
    }
  };
  for (const bool object : {true, false})
    for (const bool null : {true, false}) {
      if (!syntax_ || knows_calls_) break;
      object_arguments_ = object, null_content_ = null;
      knows_calls_ = renders(conversation, {});
    }
  knows_tools_ = knows_calls_ && renders({user}, probe_tools());
  if (!knows_calls_) syntax_ = &hermes_syntax();
  marks_ = mark_tokens(*syntax_, tokenizer);
}

ChatText ChatFormat::rendered(std::vector<Message> messages, const std::string& tools) const {
  std::vector<ChatMessage> out;
  for (Message& m : messages) {
    if (!m.calls.empty()) m.chat.tool_calls = calls_json(m.calls, object_arguments_);
    if (!null_content_) m.chat.no_content = false;
    out.push_back(std::move(m.chat));
  }
  ChatOptions options = options_;
  options.tools = tools;
  return template_.render(out, options);
}

// A template that knows no system message gets the notice with the first message of the user.
ChatText ChatFormat::with_notice(const std::vector<Message>& messages, const std::string& notice) const {
  std::vector<Message> with = messages;
  const auto add_to = [&](ChatMessage& m) { m.content = m.content.empty() ? notice : m.content + "\n\n" + notice; };
  try {
    if (with[0].chat.role != "system") with.insert(with.begin(), Message{{"system", ""}});
    add_to(with[0].chat);
    ChatText out = rendered(with, {});
    if (has(out, notice.c_str())) return out;
  } catch (const Error&) {
  }
  with = messages;
  for (Message& m : with)
    if (m.chat.role == "user") {
      m.chat.content = notice + "\n\n" + m.chat.content;
      break;
    }
  return rendered(with, {});
}

ChatText ChatFormat::render(const std::vector<Message>& messages, const std::string& tools,
                            const std::vector<std::string>& listed) const {
  if (knows_calls_) {
    if (tools.empty() || knows_tools_) return rendered(messages, tools);
    return with_notice(messages, tools_notice(*syntax_, listed));
  }
  std::vector<Message> plain;  // calls and what they returned as the words of assistant and user
  bool results = false;
  for (const Message& m : messages) {
    const bool result = m.chat.role == "tool";
    Message out{{m.chat.role, m.chat.content}};
    if (!m.calls.empty()) out.chat.content += (out.chat.content.empty() ? "" : "\n") + written_calls(*syntax_, m.calls);
    if (result) out = {{"user", fmt::format("<tool_response>\n{}\n</tool_response>", m.chat.content)}};
    if (result && results)
      plain.back().chat.content += "\n" + out.chat.content;
    else
      plain.push_back(std::move(out));
    results = result;
  }
  return tools.empty() ? rendered(plain, {}) : with_notice(plain, tools_notice(*syntax_, listed));
}

}  // namespace dsmoe::serve
