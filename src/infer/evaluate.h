// Loss and perplexity of token sequences.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "dsmoe/evaluate.h"
#include "dsmoe/routing_overrides.h"
#include "model/transformer.h"

namespace dsmoe {

// Called with the logits f32 [n, V] of consecutive tokens of the sequence.
using LogitSink = std::function<void(const Tensor& logits)>;

// Each token is predicted from those before it in its sequence.
class Evaluator {
 public:
  Evaluator(Context& ctx, const Transformer& model, DType cache_dtype)
      : ctx_(ctx), model_(model), cache_dtype_(cache_dtype) {}

  void add(std::span<const std::int32_t> sequence, const LogitSink& sink = {});
  // Scores only the tokens from this position of each sequence on (from 0); those before are context.
  void set_first(Index place) { first_ = place; }
  void set_probe(RoutingProbe probe) { hooks_.routing = std::move(probe); }
  void set_overrides(RoutingOverrides overrides) { overrides_ = std::move(overrides); }
  const Evaluation& result() const { return result_; }

 private:
  Context& ctx_;
  const Transformer& model_;
  DType cache_dtype_;
  Index first_ = 0;
  PassHooks hooks_;
  std::optional<RoutingOverrides> overrides_;
  std::shared_ptr<KvPool> pool_;  // for the longest sequence so far
  Evaluation result_;
};

}  // namespace dsmoe
