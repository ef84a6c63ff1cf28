// Options for generating text (context, sampling, when to stop), and the result.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/kv_type.h"
#include "dsmoe/options.h"
#include "dsmoe/routing_overrides.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

// Applied in this order; the defaults are llama.cpp's. A model may come with others: Model::generation().
struct SamplerOptions {
  float repetition_penalty = 1.0f;  // logits of recent tokens are divided by it, negative ones multiplied
  Index repetition_window = 64;     // of all three penalties
  float presence_penalty = 0;       // subtracted from the logits of recent tokens
  float frequency_penalty = 0;      // subtracted once for each time the token is among them
  Index top_k = 40;
  float top_p = 0.95f;
  float min_p = 0.05f;
  float temperature = 0.8f;  // 0: the most likely token, the lowest id among equals
  std::uint64_t seed = 0;

  void validate() const;  // throws Error naming the option

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.temperature, {"temp", "Temperature (0: greedy decoding)", at_least(0)});
    v(o.top_k, {"top-k", "Top-k sampling: keep the k most likely tokens (0 disables it)", at_least(0)});
    v(o.top_p, {"top-p", "Nucleus sampling: keep the most likely tokens with this total probability (1 disables it)",
                over(0).at_most(1)});
    v(o.min_p, {"min-p", "Min-p sampling: drop tokens less likely than this fraction of the best (0 disables it)",
                at_least(0).at_most(1)});
    v(o.repetition_penalty, {"repeat-penalty", "Penalize the logits of recent tokens (1 disables it)", over(0)});
    v(o.repetition_window, {"repeat-last-n", "Number of recent tokens to penalize", at_least(0)});
    v(o.presence_penalty, {"presence-penalty", "Subtract this from the logits of recent tokens (0 disables it)"});
    v(o.frequency_penalty,
      {"frequency-penalty", "Subtract this from the logit of a recent token for each time it occurs (0 disables it)"});
    v(o.seed, {"seed", "Seed of the sampler; the same seed gives the same text"});
  }
};

struct SessionOptions {
  Index context = 0;
  std::optional<KvType> kv_type;
  Index chunk = 512;
  int threads = 0;

  void validate() const;

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.context, {"context", "Context length in tokens (0: the model's max_position_embeddings)", at_least(0)});
    v(o.kv_type, kKvTypeOption);
    v(o.chunk, {"ubatch-size", "Prompt tokens per forward pass; bounds the memory of activations", at_least(1)});
    v(o.threads, {"threads", "CPU threads (0: one per physical core; of a hybrid processor, the fast ones)", at_least(0)});
  }
};

struct GenerateOptions {
  Index max_tokens = 256;
  SamplerOptions sampler;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::vector<std::int32_t> end_tokens;  // in addition to the model's own; not part of the text
  // The text keeps to a grammar in GBNF, or is JSON that is valid under a schema; "" for none, and at most one of them.
  // Needs a tokenizer, and the model on the CPU. docs/howto/structured-output.md has the notation and the keywords.
  std::string grammar, json_schema;
  // How experts are chosen, where not as the model says. A session's KV cache keeps what was computed so.
  std::optional<RoutingOverrides> overrides;

  void validate() const;  // the sampler's options too

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.max_tokens,
      {"n-predict", "Maximum number of tokens to generate (-1: until EOS or the context is full)", at_least(-1)});
    v(o.stop, {"stop", "Stop when this text is generated; it is not printed; repeatable"});
    v(o.ignore_eos, {"ignore-eos", "Never choose an end-of-sequence token, so that the text goes on (as llama.cpp does)"});
  }
};

enum class Finish {
  kLength,   // max_tokens reached
  kEos,      // the model ended the text
  kStopped,  // a stop string was generated, or the callback returned false
  kContext,  // the context is full
  kTimeout,  // the time limit is over; of an engine's and a batch's requests alone
};
const char* to_string(Finish finish);

struct Generated {
  std::vector<std::int32_t> ids;
  Finish finish = Finish::kLength;
  Index prompt_tokens = 0;  // processed in this call; tokens that were in the KV cache already do not count
  double prompt_seconds = 0;
  double seconds = 0;  // for ids.size() tokens
  std::string text;    // without stop strings; "" for a model without a tokenizer
};

}  // namespace dsmoe
