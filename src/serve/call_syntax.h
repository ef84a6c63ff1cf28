// How models write calls of functions. The chat template shows which way a model was trained on; a model whose template
// knows no tools is told one in its system message.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/tokenizer.h"
#include "grammar/grammar.h"

namespace dsmoe::serve {

// A function that the model may call.
struct Tool {
  std::string name;
  std::string parameters;  // a JSON schema; "": none
  bool strict = false;     // a schema that no grammar can be made of is an error, not any object
};

// Texts around calls. A blank stands for white space that may be there.
struct CallSyntax {
  const char* name;   // for documents and tests
  const char* open;   // before the first call
  const char* begin;  // before each
  // Either {"name": NAME, KEY: ARGUMENTS} with this key, or NAME, `infix`, ARGUMENTS.
  const char* key;
  const char* infix;
  const char* end;      // behind each
  const char* between;  // calls
  const char* close;    // behind the last
  // Texts that a call may begin with, where they begin the answer: for models that mark calls by nothing else.
  std::vector<const char*> starts = {};

  bool json() const { return *key != '\0'; }
  std::string opening() const;  // what calls begin with: never a blank
  // The parts of the texts above that are not blanks.
  std::vector<std::string> marks() const;
};

const std::vector<CallSyntax>& call_syntaxes();
const CallSyntax& hermes_syntax();  // <tool_call>{"name": ..., "arguments": ...}</tool_call>: for models that know none
// The one that the template writes; null when it writes none that is known.
const CallSyntax* syntax_of_template(std::string_view chat_template);

// Tokens that are marks of the syntax, or parts of them. They may be control tokens, but belong to an answer's text.
std::vector<std::int32_t> mark_tokens(const CallSyntax& syntax, const Tokenizer& tokenizer);

struct CallGrammar {
  const CallSyntax* syntax = nullptr;
  std::vector<Tool> tools;
  bool parallel = true;
  // Instead of calls, a text under this schema is as good; "": only calls.
  std::optional<std::string> or_schema;
  std::string where;  // begins messages

  std::string key() const;        // the same for the same grammar
  grammar::Grammar make() const;  // throws for schemas that are wrong
};

}  // namespace dsmoe::serve
