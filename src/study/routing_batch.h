// What the experts of a model did with some consecutive tokens of a sequence: the currency of everything in this folder.
// It comes from a model that runs (Recorder) or from a trace that was written (TraceReader).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dsmoe/model_config.h"
#include "dsmoe/tensor.h"
#include "model/block.h"

namespace dsmoe::study {

struct RoutingShape {
  Index vocab_size = 0;         // V
  Index routed_experts = 0;     // E
  Index experts_per_token = 0;  // K
  std::vector<Index> layers;    // the MoE layers, by their index in the model

  static RoutingShape of(const ModelConfig& config);  // throws when the model has no MoE layer
  // Bounds that every reader may rely on (docs/design/limits.md). Pairs of experts are counted, so their number is one.
  void validate() const;
  friend bool operator==(const RoutingShape&, const RoutingShape&) = default;
};

struct RoutingBatch {
  struct Layer {
    Tensor experts;  // [T, K] i32, best first
    Tensor weights;  // [T, K] f32
  };
  Index domain = 0;    // of the sequence
  Index position = 0;  // of the first token in its sequence
  std::vector<std::int32_t> tokens;
  std::vector<Layer> layers;  // in the order of RoutingShape::layers

  Index size() const { return static_cast<Index>(tokens.size()); }
};

using BatchSink = std::function<void(const RoutingBatch& batch)>;

// Collects the calls of a RoutingProbe during one forward pass, and passes them on after the last layer. Tensors are
// held, not copied.
class Recorder {
 public:
  Recorder(RoutingShape shape, BatchSink sink) : shape_(std::move(shape)), sink_(std::move(sink)) {}

  void start(std::span<const std::int32_t> sequence, Index domain);  // the tokens that are about to run
  RoutingProbe probe();                                              // refers to this object

 private:
  void hear(Index layer, const Routing& routing);

  RoutingShape shape_;
  BatchSink sink_;
  std::span<const std::int32_t> rest_;  // of the sequence
  RoutingBatch batch_;
};

}  // namespace dsmoe::study
