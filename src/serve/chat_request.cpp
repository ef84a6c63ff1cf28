// Requests to /v1/chat/completions: messages, tools, and the prompt and grammar that they make.
#include <fmt/format.h>

#include <algorithm>

#include "core/printable.h"
#include "serve/fields.h"

namespace dsmoe::serve {

namespace {

constexpr std::size_t kMostTools = 128;  // as OpenAI's

std::string read_content(const Json& message, const std::string& name) {
  const Json* const content = json_read::find(message, "content");
  if (!content) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array())
    refuse(name, fmt::format("'{}.content' must be a string or an array of parts", name), "invalid_type");
  std::string text;
  for (const Json& part : *content) {
    if (!part.is_object() || field<std::string>(part, "type").value_or("") != "text")
      refuse(name,
             fmt::format("'{}.content' has {}; this model takes parts of the type 'text'", name, json_read::shown(part)));
    text += field<std::string>(part, "text").value_or("");
  }
  return text;
}

bool is_function_name(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), fits);
}

// {"type": "function", "function": {...}}: the function, which has a name.
const Json& function_of(const Json& object, const std::string& name) {
  if (!object.is_object()) refuse(name, fmt::format("'{}' must be an object", name), "invalid_type");
  const std::string type = field<std::string>(object, "type").value_or("function");
  if (type != "function")
    refuse(name, fmt::format("'{}' has the type {}; it can be 'function'", name, in_quotes(type)), "unsupported_parameter");
  const Json* const function = json_read::find(object, "function");
  if (!function || !function->is_object())
    refuse(name, fmt::format("'{}' needs 'function', an object", name), "missing_parameter");
  const auto called = field<std::string>(*function, "name");
  if (!called) refuse(name, fmt::format("'{}.function' has no 'name'", name), "missing_parameter");
  if (!is_function_name(*called))
    refuse(name, fmt::format("'{}.function.name' is {}; it must be 1 to 64 letters, digits, '_', '-' or '.'", name,
                             in_quotes(*called)));
  return *function;
}

std::vector<CalledFunction> read_calls(const Json& message, const std::string& name) {
  const Json* const calls = json_read::find(message, "tool_calls");
  if (!calls) return {};
  if (!calls->is_array()) refuse(name, fmt::format("'{}.tool_calls' must be an array", name), "invalid_type");
  std::vector<CalledFunction> out;
  for (const Json& call : *calls) {
    const Json& function = function_of(call, fmt::format("{}.tool_calls[{}]", name, out.size()));
    const Json* const arguments = json_read::find(function, "arguments");
    if (arguments && !arguments->is_string() && !arguments->is_object())
      refuse(name, fmt::format("'{}.tool_calls[{}].function.arguments' must be a string", name, out.size()),
             "invalid_type");
    out.push_back({field<std::string>(call, "id").value_or(""), *field<std::string>(function, "name"),
                   !arguments               ? "{}"
                   : arguments->is_string() ? arguments->get<std::string>()
                                            : arguments->dump()});
  }
  return out;
}

std::vector<Message> read_messages(const Json& body) {
  const Json* const messages = json_read::find(body, "messages");
  if (!messages || !messages->is_array() || messages->empty())
    refuse("messages", "'messages' must be an array of at least one message",
           messages ? "invalid_type" : "missing_parameter");
  std::vector<Message> out;
  for (const Json& message : *messages) {
    const std::string name = fmt::format("messages[{}]", out.size());
    if (!message.is_object()) refuse(name, fmt::format("'{}' must be an object", name), "invalid_type");
    const auto role = field<std::string>(message, "role");
    if (!role) refuse(name, fmt::format("'{}' has no 'role'", name), "missing_parameter");
    Message m{{.role = *role, .content = read_content(message, name)}};
    m.calls = read_calls(message, name);
    if (!m.calls.empty() && *role != "assistant")
      refuse(name, fmt::format("'{}.tool_calls' is for messages of the assistant", name));
    m.chat.no_content = !m.calls.empty() && !json_read::find(message, "content");
    m.chat.tool_call_id = field<std::string>(message, "tool_call_id").value_or("");
    if (*role == "tool" && m.chat.tool_call_id.empty())
      refuse(name, fmt::format("'{}' is of a tool, so it needs 'tool_call_id'", name), "missing_parameter");
    m.chat.name = field<std::string>(message, "name").value_or("");
    out.push_back(std::move(m));
  }
  return out;
}

struct Tools {
  std::vector<Tool> all;
  std::string json;                 // as templates get them
  std::vector<std::string> listed;  // the JSON of each
};

Tools read_tools(const Json& body) {
  Tools out;
  const Json* const tools = json_read::find(body, "tools");
  if (!tools) return out;
  if (!tools->is_array()) refuse("tools", "'tools' must be an array", "invalid_type");
  if (tools->size() > kMostTools)
    refuse("tools", fmt::format("'tools' has {} functions, at most {} are possible", tools->size(), kMostTools));
  for (const Json& tool : *tools) {
    const std::string name = fmt::format("tools[{}]", out.all.size());
    const Json& function = function_of(tool, name);
    Tool t{.name = *field<std::string>(function, "name"), .strict = field<bool>(function, "strict").value_or(false)};
    if (std::any_of(out.all.begin(), out.all.end(), [&](const Tool& other) { return other.name == t.name; }))
      refuse(name, fmt::format("'tools' has the function {} twice", in_quotes(t.name)));
    field<std::string>(function, "description");
    if (const Json* const parameters = json_read::find(function, "parameters")) {
      const Json* const type = parameters->is_object() ? json_read::find(*parameters, "type") : nullptr;
      if (!parameters->is_object() || (type && *type != "object"))
        refuse(name, fmt::format("'{}.function.parameters' must be a JSON schema of an object", name));
      t.parameters = parameters->dump();
    }
    out.all.push_back(std::move(t));
    out.listed.push_back(function.dump());
  }
  if (!out.all.empty()) out.json = tools->dump();
  return out;
}

enum class ToolChoice { kNone, kAuto, kRequired };

// With a function that must be called, only that one is left in `callable`.
ToolChoice read_choice(const Json& body, const Tools& tools, std::vector<Tool>& callable) {
  const Json* const choice = json_read::find(body, "tool_choice");
  if (!choice) return tools.all.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  const std::string word = choice->is_string() ? choice->get<std::string>() : "";
  if (word == "none") return ToolChoice::kNone;
  if (word != "auto" && word != "required" && !choice->is_object())
    refuse("tool_choice", fmt::format("'tool_choice' is {}; it can be none, auto, required, or name a function",
                                      json_read::shown(*choice)));
  if (word == "auto" && tools.all.empty()) return ToolChoice::kNone;
  if (tools.all.empty()) refuse("tool_choice", "'tool_choice' needs 'tools'");
  if (!choice->is_object()) return word == "auto" ? ToolChoice::kAuto : ToolChoice::kRequired;
  const std::string name = *field<std::string>(function_of(*choice, "tool_choice"), "name");
  std::erase_if(callable, [&](const Tool& t) { return t.name != name; });
  if (callable.empty()) refuse("tool_choice", fmt::format("'tools' has no function {}", in_quotes(name)));
  return ToolChoice::kRequired;
}

// Calls are always within a grammar; where words are possible too, from where a call begins. An answer that has to be JSON
// is either from its first byte on.
void constrain(const Tools& tools, ToolChoice choice, std::vector<Tool> callable, bool parallel, const ChatFormat& format,
               CompletionRequest& out) {
  CallGrammar grammar{.syntax = &format.syntax(), .tools = std::move(callable), .parallel = parallel, .where = "tools"};
  if (out.grammar && choice == ToolChoice::kAuto) {
    if (out.grammar->kind == infer::GrammarSource::Kind::kGbnf)
      refuse("tools", "'tools' and 'grammar' exclude each other, unless 'tool_choice' is 'none'");
    const bool any = out.grammar->kind == infer::GrammarSource::Kind::kJsonObject;
    grammar.or_schema = any ? R"({"type": "object"})" : out.grammar->text;
  }
  out.tools = ToolUse{.syntax = grammar.syntax, .lazy = choice == ToolChoice::kAuto && !grammar.or_schema};
  for (const Tool& t : tools.all) out.tools->functions.push_back(t.name);
  out.grammar = {.kind = infer::GrammarSource::Kind::kMade,
                 .text = grammar.key(),
                 .where = "tools",
                 .make = [grammar = std::move(grammar)] { return grammar.make(); }};
}

// Both are parsed once for a server; others, such as tests, have none.
std::shared_ptr<const ChatFormat> format_of(const RequestDefaults& d) {
  if (d.chat_format) return d.chat_format;
  const Tokenizer& tokenizer = tokenizer_of(d);
  if (tokenizer.chat_template().empty())
    throw ApiError(400, "this model has no chat template, so it was probably not trained for chat; use /v1/completions", {},
                   "no_chat_template");
  return std::make_shared<ChatFormat>(tokenizer);
}

}  // namespace

CompletionRequest read_chat(std::string_view body_text, const RequestDefaults& d) {
  const Json body = parsed(body_text);
  CompletionRequest out{.chat = true};
  infer::Request r = read_common(body, d, out, -1);
  r.options.max_tokens = number<Index>(body, "max_completion_tokens", r.options.max_tokens, -1, 1 << 30);
  if (field<bool>(body, "logprobs").value_or(false))
    r.logprobs = number<Index>(body, "top_logprobs", 0, 0, 20);
  else if (json_read::find(body, "top_logprobs"))
    refuse("top_logprobs", "'top_logprobs' needs 'logprobs': true");
  const std::vector<Message> messages = read_messages(body);
  Tools tools = read_tools(body);
  std::vector<Tool> callable = tools.all;
  const ToolChoice choice = read_choice(body, tools, callable);
  const bool parallel = field<bool>(body, "parallel_tool_calls").value_or(true);
  const std::shared_ptr<const ChatFormat> format = format_of(d);
  if (choice == ToolChoice::kNone) tools = {};
  r.prompt = encode_chat(tokenizer_of(d), format->render(messages, tools.json, tools.listed));
  if (choice != ToolChoice::kNone) {
    constrain(tools, choice, std::move(callable), parallel, *format, out);
    r.shown_tokens = format->marks();
  }
  out.prompts.push_back(std::move(r));
  return out;
}

std::string read_template(std::string_view body_text, const RequestDefaults& d) {
  const Json body = parsed(body_text);
  const std::vector<Message> messages = read_messages(body);
  const Tools tools = read_tools(body);
  return format_of(d)->render(messages, tools.json, tools.listed).text;
}

}  // namespace dsmoe::serve
