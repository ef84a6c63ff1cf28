// The JSON of replies.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/tokenizer.h"
#include "infer/request.h"

namespace dsmoe::serve {

using OrderedJson = nlohmann::ordered_json;

// JSON text; bytes that are no UTF-8 become U+FFFD.
std::string dumped(const OrderedJson& json);
std::string sse_event(const OrderedJson& json);  // "data: ...\n\n"

const char* finish_reason(infer::End end);  // "stop" or "length"

struct Usage {
  Index prompt = 0, cached = 0, completion = 0;
};
OrderedJson usage_json(const Usage& usage);

// Log probabilities of tokens as chat completions have them, and as completions do. A token without a value (the first of a
// prompt) is null there. `offset`: of the first token in the text, in characters; moves behind the last.
OrderedJson chat_logprobs(const std::vector<infer::TokenLogprobs>& tokens, const std::optional<Tokenizer>& tokenizer);
OrderedJson text_logprobs(const std::vector<infer::TokenLogprobs>& tokens, const std::optional<Tokenizer>& tokenizer,
                          bool first_is_null, std::size_t& offset);

OrderedJson routing_json(const infer::RoutingTrace& trace);
std::string base64(std::string_view bytes);

}  // namespace dsmoe::serve
