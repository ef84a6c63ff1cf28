// Bodies of requests: JSON from anyone, checked field by field. What is wrong is an ApiError that names the field; fields
// that nobody knows are passed over, since clients send many that make no difference.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/generate_options.h"
#include "dsmoe/tokenizer.h"
#include "infer/grammars.h"
#include "infer/request.h"
#include "serve/chat_format.h"

namespace dsmoe::serve {

// What requests are read against.
struct RequestDefaults {
  std::string model;  // its name
  std::optional<Tokenizer> tokenizer;
  std::shared_ptr<const ChatFormat> chat_format = {};  // of the tokenizer; null: made for each request
  SamplerOptions sampler;
  std::vector<std::int32_t> end_tokens;
  Index vocabulary = 0;
  Index choices = 128;  // answers of one request at most: n times prompts
};

// Functions that an answer may call.
struct ToolUse {
  const CallSyntax* syntax = nullptr;
  std::vector<std::string> functions = {};
  bool lazy = false;  // the grammar begins where a call does
};

struct CompletionRequest {
  bool chat = false;
  std::vector<infer::Request> prompts;               // one; several with /v1/completions
  Index n = 1;                                       // answers to each
  std::optional<infer::GrammarSource> grammar = {};  // that the answers are kept within; `where` is the parameter
  std::optional<ToolUse> tools = {};
  bool stream = false, include_usage = false, echo = false;
};

struct EmbeddingsRequest {
  std::vector<std::vector<std::int32_t>> inputs;
  bool base64 = false;
};

CompletionRequest read_chat(std::string_view body, const RequestDefaults& defaults);
CompletionRequest read_completion(std::string_view body, const RequestDefaults& defaults);
EmbeddingsRequest read_embeddings(std::string_view body, const RequestDefaults& defaults);

struct TokenizeRequest {
  std::string content;
  bool add_special = false, parse_special = true, with_pieces = false;
};
TokenizeRequest read_tokenize(std::string_view body);
std::vector<std::int32_t> read_detokenize(std::string_view body, const RequestDefaults& defaults);
std::string read_template(std::string_view body, const RequestDefaults& defaults);  // the prompt

}  // namespace dsmoe::serve
