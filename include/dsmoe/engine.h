// Many texts of a model at once, for programs that have many users or many prompts: requests come and go at any time, and
// run together (continuous batching) with one KV cache. dsmoe serve is this with HTTP. A request gets the same answer
// whatever runs beside it, the one that a Session would give.
//
//   dsmoe::Engine engine(dsmoe::Model::load("my-model"));
//   engine.submit({.text = "Once upon a time", .on_token = [](const dsmoe::GeneratedToken& t) { ...; return true; }});
//   engine.wait();
//
// Each program thread may also call generate() and wait for its own answer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsmoe/engine_events.h"
#include "dsmoe/engine_options.h"
#include "dsmoe/generate_options.h"
#include "dsmoe/model.h"
#include "dsmoe/routing_overrides.h"

namespace dsmoe {

struct Request {
  std::vector<std::int32_t> prompt = {};  // or:
  std::string text = {};                  // encoded by the model's tokenizer, as Session::generate() does it
  GenerateOptions options = {};           // end_tokens in addition to the model's own
  Index logprobs = -1;                    // of each token, with so many of the most likely; -1: none
  bool prompt_logprobs = false;
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};  // added to the logits of these tokens
  bool routing = false;                                         // the experts of each token
  std::optional<RoutingOverrides> overrides = {};               // for this request alone
  bool embedding = false;  // instead of an answer: the mean of the prompt's last hidden states (after the last norm)
  double seconds = 0;      // time limit from submit() on; 0: the engine's

  // Called by the engine's thread, which does nothing else meanwhile, so they should return soon; each may be empty. They
  // may submit and cancel requests. on_token returns false to cancel the request; what on_prompt or on_token throws,
  // of whatever type, becomes the request's error.
  std::function<void(const PromptDone&)> on_prompt = {};  // once, before the first token
  std::function<bool(const GeneratedToken&)> on_token = {};
  std::function<void(const RequestEnded&)> on_end = {};  // once, the last call; what it throws is lost
};

class Engine {
 public:
  // Has a thread of its own from here on, and as many for computing as the options say.
  explicit Engine(std::shared_ptr<const Model> model, const EngineOptions& options = {});
  // What is there ends as cancelled: its on_end is called, and a generate() that waits throws. No other call may be running
  // then, or begin, but those of callbacks.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Model& model() const;
  Index context() const;       // tokens of a request, prompt and answer
  Index cache_tokens() const;  // of all requests together

  // From any thread:
  // Throws for a request that can never run. Nothing: EngineOptions::queue requests wait already, or (to a callback) the
  // engine is being destroyed. With a grammar or a
  // schema the first call compiles it here, which may take a second.
  std::optional<RequestId> submit(Request request);
  void cancel(RequestId id);  // its on_end() follows, unless it has ended meanwhile
  void wait();                // until all requests have ended; not for callbacks
  // submit() and wait for this one; not for callbacks. Throws its error, and when too many requests wait or it is
  // cancelled. kStopped: a stop string was generated, or on_token returned false. kTimeout: the text is what there was
  // until then.
  Generated generate(Request request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsmoe
