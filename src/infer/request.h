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

#include "dsmoe/engine_events.h"
#include "dsmoe/generate_options.h"
#include "dsmoe/routing_overrides.h"

namespace dsmoe::infer {

// Says which tokens may come next: a grammar. One object serves one request, on the engine's thread.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Sets bit id % 32 of bits[id / 32] for tokens that may come next, end tokens among them, and clears the others. False:
  // none may, and the text ends here.
  virtual bool allowed(std::span<std::uint32_t> bits) = 0;
  virtual void accept(std::int32_t id) = 0;  // it was chosen
  // Every token may come next, so nobody needs to look.
  virtual bool anything() const { return false; }
};

using dsmoe::LayerRouting;
using dsmoe::Logprob;
using dsmoe::PromptDone;
using dsmoe::RequestId;
using dsmoe::RoutingTrace;
using dsmoe::TokenLogprobs;
using Token = GeneratedToken;
using End = RequestEnd;
using Ended = RequestEnded;

struct Request {
  std::vector<std::int32_t> prompt;
  GenerateOptions options = {};  // end_tokens are the model's, too: the engine adds none
  Index logprobs = -1;           // of each token, with so many of the most likely; -1: none
  bool prompt_logprobs = false;
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};  // added to the logits of these tokens
  std::shared_ptr<TokenMask> mask = {};
  std::vector<std::int32_t> shown_tokens = {};  // special ones that belong to the text all the same: marks of calls
  bool routing = false;
  std::optional<RoutingOverrides> overrides = {};  // for this request alone
  // Instead of an answer: the mean of the prompt's last hidden states (after the last norm).
  bool embedding = false;
  // Others with the same prompt follow (`shared_prompt`), which name this one (`after`): they wait until it has run its
  // prompt, and begin with its pages.
  bool shared_prompt = false;
  RequestId after = 0;
  double seconds = 0;  // time limit from submit() on; 0: the engine's

  std::function<void(PromptDone)> on_prompt = {};  // once, before the first token; each of these may be empty
  std::function<void(Token)> on_token = {};
  std::function<void(Ended)> on_end = {};  // once, the last call
};

}  // namespace dsmoe::infer
