// Decoding on a GPU: one token of every sequence is a few hundred short kernels, and launching them one by one takes longer
// than running them. So the pass is captured once for a number of sequences and a bound on their keys, and launched as a
// whole from then on, with new contents of the same tables. The captured pass is Transformer's own: the same kernels, the
// same bits.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "model/forward_batch.h"
#include "model/hooks.h"
#include "ops/sample.h"
#include "ops/slice.h"

namespace dsmoe {

namespace device {
class Graph;
}
class Transformer;

// Of one pool, whose pages the captured passes read and write.
class DecodeGraphs {
 public:
  // Whether a pass can be one of these: on a GPU, one token and its logits of every sequence, and nobody looks inside.
  static bool serve(const Context& ctx, const Transformer& model, const ForwardBatch& batch, const PassHooks& hooks);

  // What Transformer::logits() gives, in memory of the caller's own.
  Tensor logits(Context& ctx, const Transformer& model, const ForwardBatch& batch);

  // One token more of every sequence, without a word to the host: the tokens of the batch are those in sampling.ids, not
  // its own, and those that are chosen from their logits take their place.
  void step(Context& ctx, const Transformer& model, const ForwardBatch& batch, ops::Sampling& sampling);

 private:
  struct Captured {
    ops::Slices slices;
    Tensor ids, logits;
    std::optional<ops::Sampling> sampling;  // its memory lives as long as the graph
    std::shared_ptr<device::Graph> graph;
  };
  struct Key {
    const Transformer* model;
    const void* sampling;
    Index sequences, keys;
    auto operator<=>(const Key&) const = default;
  };
  Captured& launch(Context& ctx, const Transformer& model, const ForwardBatch& batch, ops::Sampling* sampling);

  std::map<Key, Captured> captured_;
};

}  // namespace dsmoe
