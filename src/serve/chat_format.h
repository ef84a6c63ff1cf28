// What a model's chat template knows of tools, found by rendering conversations that have them, and prompts with tools for
// templates that know them, or only calls, or neither.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dsmoe/chat_template.h"
#include "serve/call_syntax.h"

namespace dsmoe::serve {

struct CalledFunction {
  std::string id, name;
  std::string arguments;  // as the model wrote them: JSON, if it did well
};

struct Message {
  ChatMessage chat;
  std::vector<CalledFunction> calls = {};  // of an assistant
};

class ChatFormat {
 public:
  // Throws for a template that cannot be read.
  explicit ChatFormat(const Tokenizer& tokenizer);

  const CallSyntax& syntax() const { return *syntax_; }
  const std::vector<std::int32_t>& marks() const { return marks_; }  // tokens of the syntax
  bool knows_tools() const { return knows_tools_; }                  // the template writes the functions
  bool knows_calls() const { return knows_calls_; }                  // and calls of them, and their results

  // `tools`: a JSON array in OpenAI's form, each of which has its functions's JSON in `listed` too; "" for none.
  ChatText render(const std::vector<Message>& messages, const std::string& tools,
                  const std::vector<std::string>& listed) const;

 private:
  ChatText rendered(std::vector<Message> messages, const std::string& tools) const;
  ChatText with_notice(const std::vector<Message>& messages, const std::string& notice) const;

  ChatTemplate template_;
  ChatOptions options_;
  const CallSyntax* syntax_;
  std::vector<std::int32_t> marks_;
  bool knows_tools_ = false, knows_calls_ = false;
  bool object_arguments_ = true;  // as Hugging Face has them; some templates only take text
  bool null_content_ = true;      // of a message that only calls
};

// Calls as the syntax has them, and how the model is told of functions.
std::string written_calls(const CallSyntax& syntax, const std::vector<CalledFunction>& calls);
std::string tools_notice(const CallSyntax& syntax, const std::vector<std::string>& listed);

}  // namespace dsmoe::serve
