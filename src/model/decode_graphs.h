// Decoding on a GPU: one token of every sequence is a few hundred short kernels, and launching them one by one takes longer
// than running them. So the pass is captured once for a number of rows and a bound on their keys, and launched as a whole
// from then on, with new contents of the same tables. The captured pass is Transformer's own: the same kernels, the same
// bits. Batches of a server change with every request, so rows come in few sizes, and smaller batches are padded
// (ForwardBatch::padded()).
#pragma once

#include <cstdint>
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
class GraphMemory;
}  // namespace device
class Transformer;

// Of one pool, whose pages the captured passes read and write. They run one after the other, so they share the memory that
// a pass needs besides.
class DecodeGraphs {
 public:
  DecodeGraphs();
  ~DecodeGraphs();
  DecodeGraphs(const DecodeGraphs&) = delete;
  DecodeGraphs& operator=(const DecodeGraphs&) = delete;

  // Whether a pass can be one of these: on a GPU, one token and its logits of every sequence, and nobody looks inside.
  static bool serve(const Context& ctx, const Transformer& model, const ForwardBatch& batch, const PassHooks& hooks);

  // Rows that a pass of so many sequences is captured for: 1, 2, 4, 8, then steps of 8 to 32, of 16 to 64, of 32 to 256,
  // and of 64 beyond. The steps are those at which products take another tile or another one of it, so padding costs
  // little.
  static Index rows_for(Index sequences);

  // What Transformer::logits() gives, in memory of the caller's own.
  Tensor logits(Context& ctx, const Transformer& model, const ForwardBatch& batch);

  // One token more of every sequence, without a word to the host: the tokens of the batch are those in sampling.ids, not
  // its own, and those that are chosen from their logits take their place. Not padded.
  void step(Context& ctx, const Transformer& model, const ForwardBatch& batch, ops::Sampling& sampling);

  // At most so many are kept; then the one that was not used for the longest time goes.
  static constexpr std::size_t kMost = 64;
  std::size_t size() const { return captured_.size(); }
  std::uint64_t captures() const { return captures_; }  // since the beginning

 private:
  struct Captured {
    ops::Slices slices;
    Tensor ids;
    Tensor logits;                          // in the shared memory: until the next pass
    std::optional<ops::Sampling> sampling;  // its memory lives as long as the graph
    std::shared_ptr<device::Graph> graph;
    std::uint64_t used = 0;
  };
  struct Key {
    const Transformer* model;
    const void* sampling;
    Index rows, keys;
    auto operator<=>(const Key&) const = default;
  };
  Captured& launch(Context& ctx, const Transformer& model, const ForwardBatch& batch, ops::Sampling* sampling);
  void make_room();

  std::shared_ptr<device::GraphMemory> memory_;  // before the graphs: it goes after them
  std::map<Key, Captured> captured_;
  std::uint64_t launches_ = 0, captures_ = 0;
};

}  // namespace dsmoe
