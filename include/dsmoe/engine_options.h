// Options of the engine that runs many requests at once (dsmoe serve).
#pragma once

#include <optional>

#include "dsmoe/kv_type.h"
#include "dsmoe/options.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

struct EngineOptions {
  Index context = 0;
  Index cache_tokens = 0;
  std::optional<KvType> kv_type;
  Index parallel = 64;
  Index step_tokens = 0;
  Index queue = 1024;
  bool no_prefix_cache = false;
  double request_seconds = 0;
  int threads = 0;

  void validate() const;

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.context, {"context",
                  "Tokens that a request may have, prompt and answer together (0: the model's "
                  "max_position_embeddings)",
                  at_least(0)});
    v(o.cache_tokens, {"cache-tokens",
                       "Tokens in the KV cache of all requests together (0: as many as fit half of the free "
                       "memory, at most context times parallel)",
                       at_least(0)});
    v(o.kv_type, kKvTypeOption);
    v(o.parallel, {"parallel", "Requests that run at the same time; others wait", at_least(1)});
    v(o.step_tokens, {"step-tokens",
                      "Tokens per forward pass: one of each request that generates, the rest from prompts (0: 512 on a "
                      "CPU, 2048 on a GPU)",
                      at_least(0)});
    v(o.queue, {"queue", "Requests that may wait; more are refused", at_least(0)});
    v(o.no_prefix_cache, {"no-prefix-cache", "Compute every prompt from its first token"});
    v(o.request_seconds, {"request-seconds", "End a request after this time (0: never)", at_least(0)});
    v(o.threads, {"threads", "CPU threads (0: one per physical core; of a hybrid processor, the fast ones)", at_least(0)});
  }
};

}  // namespace dsmoe
