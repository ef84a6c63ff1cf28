// One sequence of a model: its KV cache, tokens in, tokens out. dsmoe/session.h is the same with text, and owns what it
// uses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

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
  void rewind(Index tokens);  // forgets all but the first `tokens` tokens
  void set_probe(RoutingProbe probe) { hooks_.routing = std::move(probe); }

  // Feeds the prompt and generates. `on_token` (may be empty) hears each token as it comes and returns false to stop.
  // The prompt and everything generated stay in the cache; a last token that has not been run does not.
  Generated generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                     const std::function<bool(std::int32_t)>& on_token = {});

 private:
  Context& ctx_;
  const Transformer& model_;
  SessionOptions options_;
  Index context_;
  KvSequence sequence_;
  std::vector<std::int32_t> history_;
  PassHooks hooks_;
};

}  // namespace dsmoe::infer
