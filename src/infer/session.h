// One sequence of a model: its KV cache, tokens in, tokens out. dsmoe/session.h is the same with text, and owns what it
// uses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "grammar/matcher.h"
#include "infer/sampler.h"
#include "model/transformer.h"

namespace dsmoe::infer {

class Session {
 public:
  Session(Context& ctx, const Transformer& model, const SessionOptions& options = {});

  const Transformer& model() const { return model_; }
  Index context() const { return context_; }
  const std::vector<std::int32_t>& history() const { return history_; }  // all tokens in the cache

  // Adds tokens and returns the logits after the last of them, f32 [1, V].
  Tensor feed(std::span<const std::int32_t> ids);
  void rewind(Index tokens);  // drops all but the first `tokens` tokens
  void set_probe(RoutingProbe probe) { hooks_.routing = std::move(probe); }
  // Of the calls that follow; must stay until it is replaced. nullptr: as the model says.
  void set_overrides(const RoutingOverrides* overrides) { hooks_.overrides = overrides; }

  // Processes the prompt and generates. `on_token` (may be empty) is called with each token and returns false to stop.
  // Prompt and generated tokens stay in the KV cache, except a last token that has not been run. On a GPU the next token is
  // being computed while on_token() looks at this one, and is forgotten when this one turns out to be the last.
  // With a matcher, which begins where the text does, only tokens that it allows are chosen, and the text ends where
  // nothing can follow. On the CPU.
  Generated generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                     const std::function<bool(std::int32_t)>& on_token = {}, grammar::Matcher* matcher = nullptr);

 private:
  void generate_tokens(const GenerateOptions& options, const std::function<bool(std::int32_t)>& on_token,
                       grammar::Matcher* matcher, Generated& out);
  // False when the grammar has come to an end.
  bool choose(Tensor logits, const grammar::Matcher* matcher);
  bool step_ahead();  // runs the token that was chosen last and chooses the next one, if that needs no look at it

  Context& ctx_;
  const Transformer& model_;
  SessionOptions options_;
  Index context_;
  KvSequence sequence_;
  std::vector<std::int32_t> history_;
  Sampler sampler_;
  PassHooks hooks_;
};

}  // namespace dsmoe::infer
