// What the templates of newer models use: macros, and walks through the messages from the end.
#include <gtest/gtest.h>

#include "dsmoe/chat_template.h"
#include "tokenizer/support.h"

namespace dsmoe {
namespace {

using testing::error_of;
using Messages = std::vector<ChatMessage>;

std::string written(std::string_view text,
                    const Messages& messages = {{"system", "Be brief."}, {"user", "Who are you?"}, {"user", "Sure?"}}) {
  return ChatTemplate(text).render(messages, {.bos_token = "<s>", .eos_token = "</s>", .add_generation_prompt = true}).text;
}

TEST(ChatTemplate, Macros) {
  EXPECT_EQ(
      written("{% macro f(a, b='-') %}[{{ a }}{{ b }}]{% endmacro %}{{ f('x') }}{{ f('y', 'z') }}{{ f(b='q', a=1) }}"),
      "[x-][yz][1q]");
  EXPECT_EQ(written("{%- macro f(a) -%} {{ a }} {%- endmacro -%} {{ f('x') + f('y') }}"), "xy");
  EXPECT_EQ(written("{% macro f(a) %}{{ a }}{% endmacro f %}{{ f() }}|{{ f(f('n')) | upper }}"), "|N");
  // It sees what is set outside of loops, not what its caller's loop has.
  EXPECT_EQ(written("{% set x = 1 %}{% macro f() %}{{ x }}{{ y }}{{ bos_token }}{% endmacro %}"
                    "{% for y in [2] %}{% set x = 3 %}{{ f() }}{{ x }}{{ y }}{% endfor %}"),
            "1<s>32");
  EXPECT_EQ(
      written("{% macro f(a) %}{% for m in a %}{{ m.role[0] }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}"
              "{% endmacro %}{{ f(messages) }}"),
      "su");
  EXPECT_EQ(written("{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"), "3210");
  EXPECT_EQ(written("{{ '<b>' | safe }}"), "<b>");
  const std::pair<const char*, const char*> wrong[] = {
      {"{{ f() }}{% macro f() %}{% endmacro %}", "the function 'f'"},
      {"{% macro f() %}", "'macro' without its 'endmacro'"},
      {"{% macro f() %}{% endif %}", "'endif' in a macro"},
      {"{% endmacro %}", "'endmacro' without its beginning"},
      {"{% macro f(a b) %}{% endmacro %}", "expected ','"},
      {"{% if x %}{% macro f() %}{% endmacro %}{% endif %}", "a macro inside of another tag"},
      {"{% macro f() %}{% endmacro %}{{ f(1) }}", "'f' has no such argument"},
      {"{% macro f() %}{% endmacro %}{{ f(a=1) }}", "'f' has no such argument"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "more than 20 deep"}};
  for (const auto& [text, words] : wrong) {
    const std::string error = error_of([&, &source = text] { written(source); });
    EXPECT_NE(error.find(words), std::string::npos) << text << ": " << error;
  }
}

// The kind of template that Qwen3 has: the last question of the user is looked for from the end, thoughts before it are
// dropped, and an empty thought is put first where thinking is off.
TEST(ChatTemplate, WalksBackwards) {
  constexpr std::string_view kText = R"({%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for m in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and m.role == "user" and m.content is string and not(m.content.startswith('<r>')) %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set content = m.content %}
    {%- if m.role == "assistant" and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- if loop.index0 > ns.last %}{%- set content = '(' + thought + ')' + content %}{%- endif %}
    {%- endif %}
    {{- '<' + m.role + '>' + content + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %})";
  EXPECT_EQ(written(kText, {{"user", "a"},
                            {"assistant", "<think>\nold\n</think>\n\nb"},
                            {"user", "c"},
                            {"assistant", "<think>new</think>d"},
                            {"user", "<r>e"}}),
            "<user>a\n<assistant>b\n<user>c\n<assistant>(new)d\n<user><r>e\n<assistant>");
}

// The kind of template that Hunyuan has: the text begins with the first message, which a system message may be, and what
// ends a message depends on who wrote it; a switch, which may be missing, stands before the question.
TEST(ChatTemplate, EndsByRole) {
  constexpr std::string_view kText = R"({%- set rest = messages %}{%- set system = none %}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}{%- endif %}
{%- for message in rest %}
    {%- set content = message['content'] %}
    {%- if loop.index0 == 0 and system is not none %}{%- set content = system ~ '<|extra_4|>' ~ content %}{%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and enable_thinking is defined and not enable_thinking %}{%- set content = '/no_think ' + content %}
        {%- endif %}
        {{- '<|startoftext|>' + content + '<|extra_0|>' }}
    {%- elif message['role'] == 'assistant' %}
        {{- content.split('</answer>')[0].split('<answer>')|last|trim + '<|eos|>' }}
    {%- else %}{{- raise_exception('no role ' + message['role']) }}
    {%- endif %}
{%- endfor %})";
  EXPECT_EQ(
      written(kText, {{"system", "Be brief."}, {"user", "a"}, {"assistant", "<answer>\nb\n</answer>"}, {"user", "c"}}),
      "<|startoftext|>Be brief.<|extra_4|>a<|extra_0|>b<|eos|><|startoftext|>c<|extra_0|>");
  EXPECT_EQ(written(kText, {{"user", "a"}}), "<|startoftext|>a<|extra_0|>");
  EXPECT_NE(error_of([&] { written(kText, {{"tool", "x"}}); }).find("no role tool"), std::string::npos);
}

// Templates of Hunyuan-A13B and of Kimi-K2 change a list or a dict in a branch that few conversations take.
TEST(ChatTemplate, AChangeOfAnObjectIsAnErrorWhenItIsReached) {
  constexpr std::string_view kText =
      "{% set seen = [] %}{% for m in messages %}{% if m.role == 'tool' %}{% set _ = "
      "seen.append(1) %}{% endif %}{{ m.content }}{% endfor %}";
  EXPECT_EQ(written(kText, {{"user", "a"}, {"assistant", "b"}}), "ab");
  EXPECT_NE(error_of([&] { written(kText, {{"tool", "a"}}); }).find("append: changes its object"), std::string::npos);
}

}  // namespace
}  // namespace dsmoe
