// What an engine answers to a request: tokens as they come, and how it ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/error.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

using RequestId = std::uint64_t;  // in the order of arrival, from 1

// Natural logarithms of probabilities by the model's own logits, before penalties, bias, grammar and temperature.
struct Logprob {
  std::int32_t id = -1;
  float value = 0;
};
struct TokenLogprobs {
  Logprob token;
  std::vector<Logprob> top;  // the most likely tokens, best first
};

// The experts of tokens at consecutive positions of the request, in one MoE layer.
struct LayerRouting {
  Index layer = 0, per_token = 0;
  std::vector<std::int32_t> experts;  // [tokens, per_token], best first
  std::vector<float> weights;
};
struct RoutingTrace {
  Index first = 0, tokens = 0;  // positions
  std::vector<LayerRouting> layers;
};

struct PromptDone {
  Index tokens = 0, cached = 0;         // `cached` of them were found in the prefix cache
  std::vector<TokenLogprobs> logprobs;  // with prompt_logprobs: of the tokens from the second on
};

// A token of the answer. The text is whole characters and never part of a stop string, so it may lag behind; what is still
// pending at the end comes with the id -1. Routing, if asked for, is that of the tokens run since the last event: a token's
// own comes with the one after it, and the last token's never, because it is not run.
struct GeneratedToken {
  std::int32_t id = -1;
  std::string text;
  std::optional<TokenLogprobs> logprobs;
  RoutingTrace routing;
};

enum class RequestEnd {
  kLength,     // max_tokens reached
  kEos,        // the model, or the grammar, ended the text
  kStop,       // a stop string was generated
  kContext,    // the context is full
  kCancelled,  // by cancel(), or the engine is gone
  kTimeout,    // the request's time is over
  kError,      // see `error`
};
const char* to_string(RequestEnd end);

struct RequestEnded {
  RequestEnd reason = RequestEnd::kLength;
  Index prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  double seconds = 0;            // since it was submitted
  std::vector<float> embedding;  // of an embedding request: [D]
  std::optional<Error> error;
};

}  // namespace dsmoe
