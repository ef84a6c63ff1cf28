// With few tokens a pass is bound by reading weights, and threads that wait for others do well to fetch what is read next.
// This is the one place that knows what that is. Hints only: no result depends on them.
#pragma once

#include "dsmoe/context.h"
#include "model/forward_batch.h"
#include "model/weights.h"

namespace dsmoe {

class Prefetch {
 public:
  // None for a training pass, nor for many tokens.
  Prefetch(Context& ctx, const ModelWeights& weights, const ForwardBatch& batch);

  void before_attention(Index layer) const;
  void before_feed_forward(Index layer) const;
  void before_next_layer(Index layer) const;  // or the head

 private:
  Context& ctx_;
  const ModelWeights& weights_;
  const ForwardBatch& batch_;
  bool few_tokens_;
};

}  // namespace dsmoe
