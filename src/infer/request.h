// What the engine is asked, and what it answers. Callbacks are called by the engine's thread and must not wait.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsmoe/error.h"
#include "dsmoe/generate_options.h"
#include "dsmoe/routing_overrides.h"

namespace dsmoe::infer {

using RequestId = std::uint64_t;  // in the order of arrival, from 1

// Says which tokens may come next: a grammar. One object serves one request, on the engine's thread.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Sets bit id % 32 of bits[id / 32] for tokens that may come next, end tokens among them, and clears the others. False:
  // none may, and the text ends here.
  virtual bool allowed(std::span<std::uint32_t> bits) = 0;
  virtual void accept(std::int32_t id) = 0;  // it was chosen
};

// Natural logarithms of probabilities by the model's own logits, before penalties, bias, mask and temperature.
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
struct Token {
  std::int32_t id = -1;
  std::string text;
  std::optional<TokenLogprobs> logprobs;
  RoutingTrace routing;
};

enum class End {
  kLength,     // max_tokens reached
  kEos,        // the model, or the mask, ended the text
  kStop,       // a stop string was generated
  kContext,    // the context is full
  kCancelled,  // by cancel()
  kTimeout,    // the request's time is over
  kError,      // see `error`
};
const char* to_string(End end);

struct Ended {
  End reason = End::kLength;
  Index prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  double seconds = 0;            // since it was submitted
  std::vector<float> embedding;  // of an embedding request: [D]
  std::optional<Error> error;
};

struct Request {
  std::vector<std::int32_t> prompt;
  GenerateOptions options = {};  // end_tokens are the model's, too: the engine adds none
  Index logprobs = -1;           // of each token, with so many of the most likely; -1: none
  bool prompt_logprobs = false;
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};  // added to the logits of these tokens
  std::shared_ptr<TokenMask> mask = {};
  bool routing = false;
  std::optional<RoutingOverrides> overrides = {};  // for this request alone
  // Instead of an answer: the mean of the prompt's last hidden states (after the last norm).
  bool embedding = false;
  double seconds = 0;  // time limit from submit() on; 0: the engine's

  std::function<void(PromptDone)> on_prompt = {};  // once, before the first token; each of these may be empty
  std::function<void(Token)> on_token = {};
  std::function<void(Ended)> on_end = {};  // once, the last call
};

}  // namespace dsmoe::infer
