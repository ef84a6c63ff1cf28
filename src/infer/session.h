// One conversation with a model: its sequence in a KV cache, tokens in, tokens out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "infer/sampler.h"
#include "model/transformer.h"

namespace dsmoe {

struct SessionOptions {
  Index context = 0;                 // tokens that fit; 0: the model's max_position_embeddings
  std::optional<DType> cache_dtype;  // unset: that of the weights
  Index chunk = 512;                 // tokens of a prompt that run at a time: bounds the memory for activations
};

enum class Finish {
  kLength,   // max_tokens reached
  kEos,      // the model ended the text
  kStopped,  // the caller's callback said so
  kContext,  // the context is full
};
const char* to_string(Finish finish);

struct GenerateOptions {
  Index max_tokens = 256;  // < 0: until the model ends or the context is full
  SamplerOptions sampler;
  std::vector<std::int32_t> end_tokens;  // end the text and are not part of it
};

struct Generated {
  std::vector<std::int32_t> ids;
  Finish finish = Finish::kLength;
  Index prompt_tokens = 0;
  double prompt_seconds = 0;
  double seconds = 0;  // for ids.size() tokens
};

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

}  // namespace dsmoe
