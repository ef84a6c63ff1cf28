#include "dsmoe/chat_template.h"

#include <gtest/gtest.h>

#include "tokenizer/support.h"

namespace dsmoe {
namespace {

using testing::error_of;
using testing::throws_error;
using Messages = std::vector<ChatMessage>;

const Messages kTalk = {{"system", "Be brief."}, {"user", "Who are you?"}, {"assistant", "A model."}, {"user", "Sure?"}};

std::string render(std::string_view text, const Messages& messages = kTalk, bool prompt = true) {
  return ChatTemplate(text)
      .render(messages, {.bos_token = "<s>", .eos_token = "</s>", .add_generation_prompt = prompt})
      .text;
}

// deepseek-moe-16b-chat, to the letter.
constexpr std::string_view kDeepSeekChat =
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}"
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

TEST(ChatTemplate, DeepSeek) {
  EXPECT_EQ(render(kDeepSeekChat),
            "<s>Be brief.\n\nUser: Who are you?\n\nAssistant: A model.</s>User: Sure?\n\nAssistant:");
  EXPECT_EQ(render(kDeepSeekChat, kTalk, false),
            "<s>Be brief.\n\nUser: Who are you?\n\nAssistant: A model.</s>User: Sure?\n\n");
  EXPECT_EQ(render(kDeepSeekChat, {}), "<s>Assistant:");
}

TEST(ChatTemplate, ThroughTheTokenizer) {
  EXPECT_EQ(test::deepseek().chat_template(), kDeepSeekChat);
  const ChatText chat = render_chat(test::deepseek(), Messages{{"user", "Who are you?"}});
  EXPECT_EQ(chat.text, "<｜begin▁of▁sentence｜>User: Who are you?\n\nAssistant:");
  EXPECT_EQ(encode_chat(test::deepseek(), chat),
            (std::vector<std::int32_t>{100000, 5726, 25, 8886, 418, 340, 30, 185, 185, 77398, 25}));
  EXPECT_TRUE(throws_error([] { render_chat(test::small(), kTalk); }, {"without a chat template"}));
}

TEST(ChatTemplate, ChatMl) {
  constexpr std::string_view kChatMl = R"({% for message in messages %}
    {%- if loop.first and messages[0].role != 'system' %}
        {{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}
    {%- endif %}
{{'<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n'}}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";
  EXPECT_EQ(render(kChatMl, {{"user", "  Hi "}}),
            "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(render(kChatMl, {{"system", "S"}, {"user", "U"}}, false),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n");
}

constexpr std::string_view kLlama2 =
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}";

TEST(ChatTemplate, Llama2) {
  EXPECT_EQ(render(kLlama2),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nWho are you? [/INST] A model. </s><s>[INST] Sure? [/INST]");
  EXPECT_EQ(
      error_of([] {
        render(kLlama2, {{"user", "a"}, {"user", "b"}});
      }),
      "the chat template refuses this conversation: Conversation roles must alternate user/assistant/user/assistant/...");
}

// What DeepSeek's later models do: a namespace that survives the loop, and the thoughts cut off.
TEST(ChatTemplate, NamespacesAndSplit) {
  constexpr std::string_view kText = R"({%- set ns = namespace(system='', last=none) -%}
{%- for m in messages if m.role == 'system' -%}{%- set ns.system = ns.system ~ m.content -%}{%- endfor -%}
{{- bos_token ~ ns.system -}}
{%- for m in messages -%}
  {%- if m.role == 'user' -%}{{- '<U>' ~ m.content -}}
  {%- elif m.role == 'assistant' -%}
    {%- set content = m.content -%}
    {%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}
    {{- '<A>' ~ content ~ eos_token -}}
  {%- endif -%}
  {%- set ns.last = m.role -%}
{%- endfor -%}
{%- if ns.last is not none and ns.last != 'assistant' and add_generation_prompt -%}{{- '<A>' -}}{%- endif -%})";
  EXPECT_EQ(render(kText, {{"system", "S"}, {"user", "u"}, {"assistant", "<think>x</think>y"}, {"user", "v"}}),
            "<s>S<U>u<A>y</s><U>v<A>");
}

// Trimming as Hugging Face renders: the newline behind a tag and the indentation before it go, those of {{ }} stay.
TEST(ChatTemplate, WhiteSpace) {
  EXPECT_EQ(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(render("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
  EXPECT_EQ(render("a \n {%- if true -%} \n b {%- endif -%} c"), "abc");
  EXPECT_EQ(render("a {{ 'b' }}\n c {{- 'd' -}} \n e"), "a b\n cde");
  EXPECT_EQ(render("a\n  {# note #}\nb {#- note -#} c"), "a\nbc");
  EXPECT_EQ(render("x {% if true %}\r\ny\r\n{% endif %}z\r\n"), "x y\nz");
  EXPECT_EQ(render("{ {a} }"), "{ {a} }");
}

TEST(ChatTemplate, Expressions) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1 + 2 * 3", "7"},
      {"-7 // 2", "-4"},
      {"-7 % 3", "2"},
      {"'a' ~ 1 ~ true ~ none ~ nothing", "a1TrueNone"},
      {"'a' 'b'", "ab"},
      {"'\\u00e9\\x41\\n' + \"'\"", "éA\n'"},
      {"not nothing is defined", "True"},
      {"1 < 2 <= 2", "True"},
      {"'b' in 'abc' and 'x' not in ['a', 'b']", "True"},
      {"'' or 'x'", "x"},
      {"'a' if false else 'b'", "b"},
      {"'a' if false", ""},
      {"messages[-1].content[:3]", "Sur"},
      {"messages|length", "4"},
      {"(messages[1:]|first)['role']", "user"},
      {"'äöü'[::-1]", "üöä"},
      {"[1, 2] + [3] == [1, 2, 3]", "True"},
      {"' x '|trim ~ ' x '.rstrip() ~ '.'", "x x."},
      {"'a,b,,c'.split(',')|join('-')", "a-b--c"},
      {"' a  b '.split()|join('-')", "a-b"},
      {"'user'|capitalize ~ 'User'.upper()", "UserUSER"},
      {"{'a': 1, 'b': [true, none, 'ü\"']}|tojson", "{\"a\": 1, \"b\": [true, null, \"ü\\\"\"]}"},
      {"{'a': {'b': 'c'}}.a['b']", "c"},
      {"{'a': 1}.get('b', 2)", "2"},
      {"nothing|default('d')", "d"},
      {"''|default('d', true)", "d"},
      {"tools is none and tools is defined", "True"},
      {"'1' == 1 or true == 1", "True"},
  };
  for (const auto& [expression, want] : cases) EXPECT_EQ(render("{{ " + expression + " }}"), want) << expression;
}

TEST(ChatTemplate, LoopsAndScopes) {
  EXPECT_EQ(render("{% for m in messages %}{{ loop.index }}{{ loop.last }}{% if loop.index0 == 1 %}{% break %}{% endif "
                   "%}{% endfor %}"),
            "1False2False");
  EXPECT_EQ(
      render("{% for m in messages if m.role == 'user' %}{{ m.content }}{% if not loop.last %}|{% endif %}{% endfor %}"),
      "Who are you?|Sure?");
  EXPECT_EQ(render("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k ~ v }}{% endfor %}"), "a1b2");
  EXPECT_EQ(render("{% for x in [] %}{{ x }}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(
      render("{% for i in range(2, -3, -2) %}{{ i }} {% endfor %}{{ range(1, 9, 3)|join(' ') }}{{ range(1, 9, -1)|join }}"
             "{{ range(9223372036854775806, 9223372036854775807, 9223372036854775807)|length }}"),
      "2 0 -2 1 4 71");
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [] %}{% else %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}"), "21");
  // What is set in a loop ends with the round; a namespace is what carries it out.
  EXPECT_EQ(render("{% set x = 'old' %}{% for i in range(2) %}{{ x }}{% set x = 'new' %}{{ x }}{% endfor %}{{ x }}"),
            "oldnewoldnewold");
}

TEST(ChatTemplate, JsonOfTools) {
  const auto with = [](std::string_view text, const std::string& tools) {
    return ChatTemplate(text).render(Messages{{"user", "u"}}, {.tools = tools}).text;
  };
  const std::string tools = R"([{"z": 1, "a": [1.0, -0.5, 1e-05, 1e16, 123456789012.25], "é": null, "e": {}, "l": []}])";
  EXPECT_EQ(with("{{ tools | tojson }}", tools),
            R"([{"z": 1, "a": [1.0, -0.5, 1e-05, 1e+16, 123456789012.25], "é": null, "e": {}, "l": []}])")
      << "as Python writes it";
  EXPECT_EQ(with("{{ tools | tojson(indent=2) }}", R"([{"a": {"b": [1, 2]}, "e": {}}])"),
            "[\n  {\n    \"a\": {\n      \"b\": [\n        1,\n        2\n      ]\n    },\n    \"e\": {}\n  }\n]");
  EXPECT_EQ(with("{{ tools[0].a == 1 }}{{ tools[0].a is float }}{{ tools[0].a }}", R"([{"a": 1.0}])"), "TrueTrue1.0");
  EXPECT_EQ(with("{{ tools is none }}", ""), "True");
  EXPECT_EQ(with("{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ m.content }}{% endfor %}"
                 "{{ messages | rejectattr('role', 'ne', 'user') | list | length }}{{ messages | selectattr('x') | list | "
                 "length }}"
                 "{{ messages | selectattr('x', 'undefined') | list | length }}",
                 ""),
            "u101");
  EXPECT_EQ(with("{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}26 Jul{% endif %}", ""), "26 Jul");
  EXPECT_TRUE(throws_error([&] { with("{{ strftime_now('%d') }}", ""); }, {"strftime_now", "not supported"}));
  EXPECT_TRUE(throws_error([&] { with("{{ tools }}", "{\"a\":"); }, {"tools"}));
  EXPECT_TRUE(throws_error([&] { with("{{ tools[0] + 1 }}", "[1.5]"); }, {"not supported"}));
}

TEST(ChatTemplate, RefusesWithNameAndPlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{% block f %}{% endblock %}", "line 1, column 1: the tag 'block' is not supported"},
      {"\n {{ x|groupby('a') }}", "line 2, column 6: the filter 'groupby' is not supported"},
      {"{{ x is divisibleby 3 }}", "the test 'divisibleby'"},
      {"{{ lipsum(3) }}", "the function 'lipsum'"},
      {"{{ x.format(1) }}", "the method 'format'"},
      {"{{ 1 / 2 }}", "the operator /"},
      {"{{ 1.5 }}", "a number other than an integer"},
      {"{% set x %}a{% endset %}", "a block"},
      {"{{ 'a }}", "a string without its end"},
      {"{{ x", "a tag without its }}"},
      {"{# x", "a comment without its end"},
      {"{% if x %}", "'if' without its 'endif'"},
      {"{% endfor %}", "'endfor' without its beginning"},
      {"{% for x in y %}{% endif %}", "'endif' in a loop"},
      {"{% if x %}{% else %}{% else %}{% endif %}", "after else"},
      {"{{ x y }}", "expected }}, found 'y'"},
      {"{{ }}", "expected an expression, found }}"},
      {"{% break %}", "break outside of a loop"},
      {"{{ a ] }}", "']' without its beginning"},
      {"{{ a \xC2\xA7 }}", "cannot stand in a tag"},
      {"\xFF", "UTF-8"},
  };
  for (const auto& [text, words] : cases) {
    const std::string error = error_of([&, &source = text] { ChatTemplate{source}; });
    EXPECT_NE(error.find(words), std::string::npos) << text << ": " << error;
  }
}

TEST(ChatTemplate, WhatCannotBeEvaluatedIsAnError) {
  for (const char* expression : {"'a' + 1",
                                 "nothing.x",
                                 "nothing['x']",
                                 "nothing.strip()",
                                 "messages",
                                 "messages[0]",
                                 "1 < 'a'",
                                 "'a' in 1",
                                 "1 // 0",
                                 "9223372036854775807 + 1",
                                 "-9223372036854775807 - 2",
                                 "'é'|upper",
                                 "'a'.split('')",
                                 "none.strip()",
                                 "trim()",
                                 "'a'.replace('a')",
                                 "range(1, 2, 0)",
                                 "range(1, 2, 3, 4)",
                                 "[namespace()]",
                                 "messages.append(1)",
                                 "{'a': 1}.update({'b': 2})"})
    EXPECT_TRUE(throws_error([&] { render(std::string("{{ ") + expression + " }}"); }, {"chat template"})) << expression;
}

// Templates made to take for ever, to fill the memory or to overflow the stack.
TEST(ChatTemplate, HostileTemplatesEndWithAnError) {
  const auto repeat = [](const std::string& what, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += what;
    return out;
  };
  std::string loops;
  for (const char* name : {"a", "b", "c", "d", "e"}) loops += std::string("{% for ") + name + " in range(1000) %}";
  const std::vector<std::string> cases = {
      loops + "x" + repeat("{% endfor %}", 5),
      "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
      "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
      "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x] %}{% endfor %}",
      "{% set n = namespace() %}{% set n.x = n %}",
      "{% for i in range(999999999999) %}{% endfor %}",
      "{% set x = 'aaaaaaaa' %}{{ x" + repeat("|replace('a', 'aaaaaaaa')", 40) + " }}",
      "{{ " + repeat("(", 100000) + " }}",
      "{{ " + repeat("-", 100000) + "1 }}",
      "{{ " + repeat("not ", 100000) + "1 }}",
      "{{ 1" + repeat(" + 1", 100000) + " }}",
      "{{ x" + repeat(".x", 100000) + " }}",
      "{{ x" + repeat("|trim", 100000) + " }}",
      repeat("{% if 1 %}", 100000),
      std::string(3 << 20, 'x'),
  };
  for (const std::string& text : cases) EXPECT_NE(error_of([&] { render(text); }), "") << text.substr(0, 80);
}

// What messages wrote stands in « ».
std::string marked(const ChatText& chat) {
  std::string out;
  std::size_t done = 0;
  for (const TextRange& range : chat.from_messages) {
    out += chat.text.substr(done, range.begin - done) + "«" + chat.text.substr(range.begin, range.end - range.begin) + "»";
    done = range.end;
  }
  return out + chat.text.substr(done);
}

// Whatever a template does to a message, it stays known which bytes are the message's.
TEST(ChatTemplate, KnowsWhatMessagesWrote) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"'<s>' + c + eos_token", "<s>« a,<s>b »</s>"},
      {"c ~ c", "« a,<s>b  a,<s>b »"},
      {"c ~ '|' ~ 1 ~ true", "« a,<s>b »|1True"},
      {"c|trim + '.'", "«a,<s>b»."},
      {"c.lstrip() ~ c.rstrip(' b')", "«a,<s>b  a,<s>»"},
      {"(c + 'x').upper()", "« A,<S>B »X"},
      {"('x' + c)|replace('a', '<s>')", "x« »<s>«,<s>b »"},
      {"'<m>'.replace('m', c)", "<« a,<s>b »>"},
      {"c.split(',')[1] ~ '.'", "«<s>b »."},
      {"c.split()|join('</s>')", "«a,<s>b»"},
      {"[c, 'x', c[1]]|join(', ')", "« a,<s>b », x, «a»"},
      {"['x', 'y']|join(c)", "x« a,<s>b »y"},
      {"('ab' + c)[1:5] ~ c[-2]", "b« a,b»"},
      {"(c ~ 'xy')[::-1]", "yx« b>s<,a »"},
      {"c|list|last ~ c|first ~ '.'", "«  »."},
      {"(c ~ 1)|string ~ nothing|default(c)", "« a,<s>b »1« a,<s>b »"},
      {"{'k': c ~ '\"'}|tojson", "{\"k\": \"« a,<s>b »\\\"\"}"},
      {"messages|tojson", "[{\"role\": \"user\", \"content\": \"« a,<s>b »\"}]"},
      {"messages[0].items()|list|last|last", "« a,<s>b »"},
      {"messages[0].values()|join", "user« a,<s>b »"},
      {"messages[0].get('content')", "« a,<s>b »"},
      {"c if c in 'x' + c else 'no'", "« a,<s>b »"},
  };
  for (const auto& [expression, want] : cases) {
    const ChatTemplate chat("{% set ns = namespace(c=messages[0].content) %}{% set c = ns.c %}{{ " + expression + " }}");
    EXPECT_EQ(marked(chat.render(Messages{{"user", " a,<s>b "}}, {.bos_token = "<s>", .eos_token = "</s>"})), want)
        << expression;
  }
  EXPECT_TRUE(throws_error([] { render("{{ {messages[0].content: 1}|tojson }}"); }, {"a key that comes from a message"}));
}

TEST(ChatTemplate, TheUsualRolesAreTheTemplatesWords) {
  const ChatTemplate chat("{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}");
  EXPECT_EQ(marked(chat.render(Messages{{"user", ""}, {"assistant", ""}, {"eos", ""}}, {})),
            "<|user|><|assistant|><|«eos»|>");
}

std::vector<std::int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text, const Messages& messages) {
  return encode_chat(tokenizer, ChatTemplate(text).render(messages, chat_options(tokenizer)));
}
using Ids = std::vector<std::int32_t>;

TEST(ChatTokens, OnlyTheTemplateMakesControlTokens) {
  const Tokenizer t = test::small(nlohmann::json::object(), {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  constexpr std::string_view kPlainChat = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
  EXPECT_EQ(ids_of(t, kPlainChat, {{"user", "</s>he<s>"}}), (Ids{258, '<', '/', 's', '>', 256, '<', 's', '>', 259}));
  EXPECT_EQ(ids_of(t, "<s>x</s>", {}), (Ids{258, 'x', 259})) << "the template's own text makes them too";
  // Neither across the border, in either direction.
  EXPECT_EQ(ids_of(t, "{{ '<' + messages[0].content + '>' }}", {{"user", "s"}}), (Ids{'<', 's', '>'}));
  EXPECT_EQ(ids_of(t, "{{ messages[0].content + 's>' }}", {{"user", "<"}}), (Ids{'<', 's', '>'}));
  // The negative control: encoded as one text, they are control tokens.
  EXPECT_EQ(t.encode("</s>he<s>", {.add_bos = false}), (Ids{259, 256, 258}));
}

TEST(ChatTokens, AMessageCannotHideATokenOfTheTemplate) {
  nlohmann::json added = test::small_json()["added_tokens"];
  added.push_back(added[0]);
  added[2]["id"] = 260, added[2]["content"] = "<s></s>";
  const Tokenizer t = test::small({{"added_tokens", added}}, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  constexpr std::string_view kPlainChat = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
  EXPECT_EQ(ids_of(t, kPlainChat, {{"user", "<s>"}}), (Ids{258, '<', 's', '>', 259}));
  EXPECT_EQ(ids_of(t, kPlainChat, {{"user", "</s>x"}}), (Ids{258, '<', '/', 's', '>', 'x', 259}));
  EXPECT_EQ(ids_of(t, "<s></s>", {}), (Ids{260})) << "the longest, where both are the template's";
}

// As Hugging Face tokenizes the rendered text: words and merges go across the border of a message.
TEST(ChatTokens, AreThoseOfTheWholeText) {
  EXPECT_EQ(ids_of(test::small(), "{{ 'h' + messages[0].content }}", {{"user", "e"}}), (Ids{256}));
  const Tokenizer& t = test::deepseek();
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::string text = test::random_text(seed, 40);
    for (std::size_t at; (at = text.find("<｜")) != std::string::npos;) text.erase(at, 4);
    const ChatText chat = render_chat(t, Messages{{"system", text}, {"user", text}});
    EXPECT_EQ(encode_chat(t, chat), t.encode(chat.text, {.add_bos = false})) << seed;
  }
}

// Some files add <｜User｜> without marking it as special; llama.cpp counts it as a control token as well.
TEST(ChatTokens, ControlTokensByTheirLook) {
  nlohmann::json added = test::small_json()["added_tokens"];
  for (const char* content : {"<｜User｜>", "<|x|>", "ab"}) {
    added.push_back(added[0]);
    added.back()["id"] = 257 + added.size(), added.back()["content"] = content;
    added.back()["special"] = false, added.back()["normalized"] = true;
  }
  const Tokenizer t = test::small({{"added_tokens", added}});
  EXPECT_EQ(t.encode("<｜User｜><|x|>ab"), (Ids{260, 261, 262}));
  EXPECT_EQ(t.encode("<|x|>ab", {.parse_special = false}), (Ids{'<', '|', 'x', '|', '>', 262})) << "ab is a word as any";
  EXPECT_EQ(ids_of(t, "<|x|>{{ messages[0].content }}", {{"user", "<|x|>ab"}}), (Ids{261, '<', '|', 'x', '|', '>', 262}));
}

TEST(ChatTokens, ANormalizerChangesNothing) {
  nlohmann::json added = test::small_json()["added_tokens"];
  added[0]["normalized"] = true;
  const nlohmann::json patch = {{"added_tokens", added},
                                {"normalizer",
                                 {{"type", "Sequence"},
                                  {"normalizers",
                                   {{{"type", "Replace"}, {"pattern", {{"String", "A"}}}, {"content", "<s>"}},
                                    {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}}}}}};
  const Tokenizer t = test::small(patch);
  EXPECT_EQ(ids_of(t, "<s>{{ messages[0].content }}<s>", {{"user", "A<s>x"}}),
            (Ids{258, '<', 's', '>', '<', 's', '>', 'x', 258}));
  EXPECT_EQ(t.encode("A<s>x"), (Ids{258, 258, 'x'})) << "the negative control";
}

}  // namespace
}  // namespace dsmoe
