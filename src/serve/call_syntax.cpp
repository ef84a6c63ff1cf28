#include "serve/call_syntax.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/fail.h"
#include "grammar/json_schema.h"
#include "grammar/json_text.h"

namespace dsmoe::serve {

namespace {

constexpr std::uint32_t kMostCalls = 64;  // in one answer

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) out.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

}  // namespace

// In the order in which templates are searched for them.
const std::vector<CallSyntax>& call_syntaxes() {
  static const std::vector<CallSyntax> all = {
      {.name = "hermes",  // Hermes, Qwen 2.5 and 3
       .open = "",
       .begin = "<tool_call> ",
       .key = "arguments",
       .infix = "",
       .end = " </tool_call>",
       .between = " ",
       .close = ""},
      {.name = "deepseek-v3",  // and R1
       .open = "<｜tool▁calls▁begin｜>",
       .begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
       .key = "",
       .infix = " ```json ",
       .end = " ```<｜tool▁call▁end｜>",
       .between = " ",
       .close = "<｜tool▁calls▁end｜>"},
      {.name = "deepseek-v3.1",
       .open = "<｜tool▁calls▁begin｜>",
       .begin = "<｜tool▁call▁begin｜>",
       .key = "",
       .infix = "<｜tool▁sep｜>",
       .end = "<｜tool▁call▁end｜>",
       .between = " ",
       .close = "<｜tool▁calls▁end｜>"},
      {.name = "mistral",
       .open = "[TOOL_CALLS] [ ",
       .begin = "",
       .key = "arguments",
       .infix = "",
       .end = "",
       .between = " , ",
       .close = " ]"},
      {.name = "mistral-args",  // from 2025 on
       .open = "",
       .begin = "[TOOL_CALLS]",
       .key = "",
       .infix = "[ARGS]",
       .end = "",
       .between = "",
       .close = ""},
      {.name = "llama-3",
       .open = "",
       .begin = "",
       .key = "parameters",
       .infix = "",
       .end = "",
       .between = " ; ",
       .close = "",
       .starts = {"<|python_tag|>", "{\"name\"", "{\"type\": \"function\""}},
  };
  return all;
}

const CallSyntax& hermes_syntax() { return call_syntaxes()[0]; }

const CallSyntax* syntax_of_template(std::string_view text) {
  const auto has = [&](std::string_view mark) { return text.find(mark) != std::string_view::npos; };
  const auto named = [](std::string_view name) {
    return &*std::find_if(call_syntaxes().begin(), call_syntaxes().end(),
                          [&](const CallSyntax& s) { return s.name == name; });
  };
  if (has("<｜tool▁calls▁begin｜>")) return named(has("```json") ? "deepseek-v3" : "deepseek-v3.1");
  if (has("<tool_call>"))
    return has("<function=") || has("<arg_key>") ? nullptr : named("hermes");  // others write XML in it
  if (has("[TOOL_CALLS]")) return named(has("[ARGS]") ? "mistral-args" : "mistral");
  if (has("<|start_header_id|>") && has("\"parameters\": ")) return named("llama-3");
  return nullptr;
}

std::string CallSyntax::opening() const {
  const std::vector<std::string> words = words_of(*open ? open : begin);
  return words.empty() ? starts.at(0) : words[0];
}

std::vector<std::string> CallSyntax::marks() const {
  std::vector<std::string> out;
  for (const char* text : {open, begin, infix, end, between, close})
    for (std::string& word : words_of(text)) out.push_back(std::move(word));
  if (!starts.empty()) out.emplace_back(starts[0]);
  return out;
}

std::vector<std::int32_t> mark_tokens(const CallSyntax& syntax, const Tokenizer& tokenizer) {
  const std::vector<std::string> marks = syntax.marks();
  std::vector<std::int32_t> out;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view text = tokenizer.bytes(id);
    if (text.size() > 2 &&
        std::any_of(marks.begin(), marks.end(), [&](const auto& m) { return m.find(text) != std::string::npos; }))
      out.push_back(id);
  }
  return out;
}

namespace {

using grammar::Grammar;

class CallGrammarMaker {
 public:
  using Ref = Grammar::Ref;
  explicit CallGrammarMaker(const CallGrammar& what) : what_(what), json_(g_) {}

  Grammar make() {
    const CallSyntax& s = *what_.syntax;
    std::vector<Ref> bodies;
    for (const Tool& tool : what_.tools) bodies.push_back(body(tool));
    const Ref call =
        g_.call(g_.add_rule("call", g_.sequence({marks(s.begin), g_.choice(std::move(bodies)), marks(s.end)})));
    const Ref more = g_.repeat(g_.sequence({marks(s.between), call}), 0, what_.parallel ? kMostCalls - 1 : 0);
    const Ref before = s.starts.empty() ? marks(s.open) : g_.optional(g_.text(s.starts[0]));
    const Ref calls = g_.sequence({before, call, more, marks(s.close)});
    const Ref root = what_.or_schema ? g_.choice({calls, schema(*what_.or_schema, what_.where)}) : calls;
    g_.root = g_.add_rule("root", root);
    return std::move(g_);
  }

 private:
  Ref white() { return g_.choice({g_.empty(), g_.text(" "), g_.text("\n")}); }
  Ref marks(std::string_view text) {
    std::vector<Ref> parts;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(' ', at), text.size());
      if (end > at) parts.push_back(g_.text(std::string(text.substr(at, end - at))));
      if (end < text.size()) parts.push_back(white());
      at = end + 1;
    }
    return parts.empty() ? g_.empty() : g_.sequence(std::move(parts));
  }
  Ref schema(const std::string& text, const std::string& where) {
    return g_.call(g_.add_grammar(grammar::parse_json_schema(text, where)));
  }
  Ref arguments(const Tool& tool) {
    if (tool.parameters.empty()) return g_.text("{}");
    const std::string where = fmt::format("{}: the parameters of '{}'", what_.where, tool.name);
    if (tool.strict) return schema(tool.parameters, where);
    try {
      return schema(tool.parameters, where);
    } catch (const Error&) {  // what the schema says is up to the model then, as with servers that have no grammars
      return json_.object();
    }
  }
  Ref body(const Tool& tool) {
    const CallSyntax& s = *what_.syntax;
    if (!s.json()) return g_.sequence({g_.text(tool.name), marks(s.infix), arguments(tool)});
    const auto key = [&](const char* name, Ref value) { return json_.member(g_.text(grammar::json_quoted(name)), value); };
    std::vector<Ref> members;
    if (!s.starts.empty())
      members.push_back(g_.optional(g_.sequence({key("type", g_.text("\"function\"")), json_.comma()})));
    members.push_back(key("name", g_.text(grammar::json_quoted(tool.name))));
    members.push_back(json_.comma());
    members.push_back(key(s.key, arguments(tool)));
    return json_.braced("{", g_.sequence(std::move(members)), "}");
  }

  const CallGrammar& what_;
  Grammar g_;
  grammar::JsonText json_;
};

}  // namespace

std::string CallGrammar::key() const {
  std::string out = fmt::format("{}\n{}\n", syntax->name, parallel);
  for (const Tool& t : tools) out += fmt::format("{} {} {}:{}\n", t.name, t.strict, t.parameters.size(), t.parameters);
  return or_schema ? out + *or_schema : out;
}

grammar::Grammar CallGrammar::make() const { return CallGrammarMaker(*this).make(); }

}  // namespace dsmoe::serve
