// Calls of functions in the text of a model, whole, in pieces, cut off, and wrong.
#include "serve/call_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/chat_format.h"
#include "support/random_tensor.h"

namespace dsmoe {
namespace {

using serve::CalledFunction;
using serve::CallEvent;
using serve::CallParser;
using serve::CallSyntax;

struct Parsed {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Parsed&) const = default;
};

void add(Parsed& to, const std::vector<CallEvent>& events) {
  for (const CallEvent& e : events) {
    if (e.kind == CallEvent::Kind::kText) to.text += e.text;
    if (e.kind == CallEvent::Kind::kCall) to.calls.emplace_back(e.text, "");
    if (e.kind == CallEvent::Kind::kArguments) {
      ASSERT_FALSE(to.calls.empty());
      to.calls.back().second += e.text;
    }
  }
}

Parsed parse(const CallSyntax& syntax, const std::string& text, std::size_t piece = std::string::npos) {
  CallParser parser(syntax, {"add", "find_it"});
  Parsed out;
  for (std::size_t at = 0; at < text.size(); at += std::min(piece, text.size()))
    add(out, parser.push(text.substr(at, piece)));
  add(out, parser.finish());
  EXPECT_EQ(parser.calls(), out.calls.size());
  return out;
}

const CallSyntax& syntax(std::string_view name) {
  for (const CallSyntax& s : serve::call_syntaxes())
    if (s.name == name) return s;
  ADD_FAILURE() << name;
  return serve::hermes_syntax();
}

const std::vector<std::pair<std::string, std::string>> kTwo = {{"add", R"({"a": [1, {"b": "}\"]"}]})"}, {"find_it", "{}"}};

TEST(CallParser, EverySyntaxInPiecesOfAnySize) {
  const std::map<std::string, std::string> texts = {
      {"hermes",
       "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1, {\"b\": \"}\\\"]\"}]}}\n</tool_call>\n<tool_call>"
       "{\"arguments\": {}, \"name\": \"find_it\"}</tool_call>"},
      {"deepseek-v3",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": [1, {\"b\": "
       "\"}\\\"]\"}]}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>find_it\n```json\n{}\n"
       "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"deepseek-v3.1",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": [1, {\"b\": \"}\\\"]\"}]}"
       "<｜tool▁call▁end｜><｜tool▁call▁begin｜>find_it<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"mistral",
       "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": [1, {\"b\": \"}\\\"]\"}]}, \"id\": \"abc\"}, {\"name\": "
       "\"find_it\", \"arguments\": \"{}\"}]"},
      {"mistral-args", "[TOOL_CALLS]add[ARGS]{\"a\": [1, {\"b\": \"}\\\"]\"}]}[TOOL_CALLS]find_it[ARGS]{}"},
      {"llama-3",
       "{\"name\": \"add\", \"parameters\": {\"a\": [1, {\"b\": \"}\\\"]\"}]}}; {\"type\": \"function\", \"name\": "
       "\"find_it\", \"parameters\": {}}"}};
  for (const CallSyntax& s : serve::call_syntaxes()) {
    const std::string& text = texts.at(s.name);
    for (std::size_t piece = 1; piece < 40; ++piece) {
      EXPECT_EQ(parse(s, text, piece), (Parsed{"", kTwo})) << s.name << " in pieces of " << piece;
      const std::string before = s.starts.empty() ? "I look." : "";
      EXPECT_EQ(parse(s, before + " \n" + text, piece), (Parsed{before, kTwo})) << s.name;
    }
    // Cut off anywhere: calls that have begun keep what they have, and nothing else is lost.
    for (std::size_t size = 0; size < text.size(); ++size) {
      const Parsed cut = parse(s, text.substr(0, size), 3);
      ASSERT_LE(cut.calls.size(), 2u);
      for (std::size_t i = 0; i < cut.calls.size(); ++i) {
        EXPECT_EQ(cut.calls[i].first, kTwo[i].first);
        EXPECT_TRUE(kTwo[i].second.starts_with(cut.calls[i].second)) << cut.calls[i].second;
      }
      EXPECT_TRUE(cut.calls.empty() ? cut.text == text.substr(0, size) : text.substr(0, size).ends_with(cut.text));
    }
  }
}

TEST(CallParser, WhatIsWrittenIsRead) {
  const std::vector<CalledFunction> calls = {{"1", "add", "{\"a\": 1}"}, {"2", "find_it", "{}"}};
  for (const CallSyntax& s : serve::call_syntaxes())
    EXPECT_EQ(parse(s, serve::written_calls(s, calls), 5), (Parsed{"", {{"add", "{\"a\": 1}"}, {"find_it", "{}"}}}))
        << s.name;
}

TEST(CallParser, WhatIsNoCallIsText) {
  const auto stays = [](const char* name, const std::string& text) {
    for (const std::size_t piece : {1u, 3u, 1000u}) EXPECT_EQ(parse(syntax(name), text, piece), (Parsed{text, {}})) << name;
  };
  for (const std::string text : {"", " ", "words\n", "<tool_call>", "<tool_call>\n", "a <tool_call> b",
                                 "<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>",
                                 "<tool_call>{\"name\": 7}</tool_call>", "<tool_call>{\"name\": \"add", "x <tool_call>[1]",
                                 "<tool_call>{}", "<<<tool_call", "<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>",
                                 "<tool_call>{\"a\": {\"name\": \"add\"}}", "<tool_call><tool_call><tool_call>"})
    stays("hermes", text);
  stays("llama-3", "{\"name\": \"nobody\", \"parameters\": {}}");
  stays("llama-3", "{\"answer\": 3}");
  stays("llama-3", "See {\"name\": \"add\", \"parameters\": {}}");
  stays("mistral", "[TOOL_CALLS] no");
  stays("deepseek-v3.1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>rm<｜tool▁sep｜>{}");
  stays("hermes", "<tool_call>{\"" + std::string(5000, 'k'));
}

TEST(CallParser, ABrokenCallIsFollowedByText) {
  const Parsed broken = parse(syntax("hermes"), "<tool_call>{\"name\": \"add\", \"arguments\": 7}</tool_call> yes");
  ASSERT_EQ(broken.calls.size(), 1u);
  EXPECT_EQ(broken.calls[0].second, "");
  const Parsed again = parse(
      syntax("hermes"), "<tool_call>{oops</tool_call>\n<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>.", 2);
  EXPECT_EQ(again.calls.size(), 1u);
  EXPECT_EQ(again.text, "<tool_call>{oops</tool_call>.");
  EXPECT_EQ(parse(syntax("hermes"), "<tool_call>{\"name\": \"add\", \"arg"), (Parsed{"", {{"add", ""}}})) << "cut off";
  EXPECT_EQ(parse(syntax("hermes"), "<tool_call>{\"name\": \"add\"}</tool_call>"), (Parsed{"", {{"add", "{}"}}}))
      << "without any";
}

// Pieces never change the result, and no text makes the parser hang, fall over or invent calls.
TEST(CallParser, WhiteSpaceEndsANumberWhereverTheTextIsCut) {
  const std::string text = R"(<tool_call>{"id": 1 2, "name": "add", "arguments": {}}</tool_call>)";
  const Parsed whole = parse(syntax("hermes"), text);
  EXPECT_EQ(whole.text, text) << "it is no JSON";
  for (std::size_t piece = 1; piece < 9; ++piece) EXPECT_EQ(parse(syntax("hermes"), text, piece), whole) << piece;
}

TEST(CallParser, RandomTextsInRandomPieces) {
  test::Draw draw(7);
  for (const CallSyntax& s : serve::call_syntaxes()) {
    std::vector<std::string> words = s.marks();
    for (const char* w : {"{",
                          "}",
                          "\"",
                          "\\",
                          ":",
                          ",",
                          "[",
                          "]",
                          " ",
                          "\n",
                          "add",
                          "find_it",
                          "\"name\": \"add\"",
                          "\"arguments\": ",
                          "\"parameters\": ",
                          "{\"name\"",
                          "x",
                          "\xC3\xA9",
                          "\xFF",
                          "<",
                          "1",
                          "null",
                          "{}"})
      words.emplace_back(w);
    for (int round = 0; round < 300; ++round) {
      std::string text;
      for (auto n = draw(25); n > 0; --n) text += words[static_cast<std::size_t>(draw(static_cast<Index>(words.size())))];
      const Parsed whole = parse(s, text);
      EXPECT_EQ(parse(s, text, 1), whole) << s.name << ": " << text;
      EXPECT_EQ(parse(s, text, static_cast<std::size_t>(2 + draw(7))), whole) << s.name << ": " << text;
      for (const auto& call : whole.calls) EXPECT_TRUE(call.first == "add" || call.first == "find_it");
      EXPECT_TRUE(!whole.calls.empty() || whole.text == text) << s.name;
    }
  }
}

}  // namespace
}  // namespace dsmoe
