#include "model/prefetch.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "core/threads.h"

namespace dsmoe {

namespace {

// So few that a block's time goes into reading its weights; then it pays that threads fetch while they wait.
constexpr Index kFewTokens = 4;

using Memory = std::span<const std::byte>;

Memory memory_of(const Tensor& t) { return {static_cast<const std::byte*>(t.raw()), t.bytes()}; }

void coming_up(Context& ctx, std::initializer_list<Memory> pieces) {
  constexpr std::size_t kMost = 512 << 10;  // of a tensor: waits are short, and a cache is small
  std::array<Memory, ThreadPool::kMaxComing> memory;
  std::size_t n = 0;
  for (const Memory& piece : pieces)
    if (n < memory.size()) memory[n++] = piece.first(std::min(kMost, piece.size()));
  ctx.pool().coming_up(std::span(memory).first(n));
}

// Of the experts that every token takes (the shared ones, or the one of a dense layer), a matrix of the first; in a file
// those of the others follow it.
Memory first_matrix(const Experts& experts, Index taken, const ExpertMatrix& m) {
  const Index rows = experts.width(0) * (experts.stacked() ? 1 : taken);
  return {static_cast<const std::byte*>(m.data), row_bytes(m.dtype, rows * m.ld)};
}

// The keys or values at the beginning of a sequence that lie in one piece.
Tensor first_rows(const Tensor& cache, const ops::Slice& slice) {
  const Index length = slice.first_position;
  Index tiles = 1;
  while (tiles < ops::Slice::tiles_of(length) &&
         slice.tiles[static_cast<std::size_t>(tiles)] == slice.tiles[0] + tiles * ops::kAttentionTile)
    ++tiles;
  return cache.rows(slice.tiles[0], slice.tiles[0] + std::min(length, tiles * ops::kAttentionTile));
}

}  // namespace

Prefetch::Prefetch(Context& ctx, const ModelWeights& weights, const ForwardBatch& batch)
    : ctx_(ctx),
      weights_(weights),
      batch_(batch),
      few_tokens_(ctx.device() == Device::kCpu && batch.pool() && batch.tokens() <= kFewTokens) {}

void Prefetch::before_attention(Index layer) const {
  if (!few_tokens_) return;
  const ops::Slice& first = batch_.slices()[0];
  const Tensor keys = first_rows(batch_.pool()->k(layer), first), values = first_rows(batch_.pool()->v(layer), first);
  coming_up(ctx_,
            {memory_of(keys), memory_of(values), memory_of(weights_.layers[static_cast<std::size_t>(layer)].o.weight)});
}

void Prefetch::before_feed_forward(Index layer) const {
  if (!few_tokens_) return;
  const LayerTensors& w = weights_.layers[static_cast<std::size_t>(layer)];
  const Index taken = w.experts.count() - (w.gate.numel() > 0 ? w.gate.dim(0) : 0);
  if (taken <= 0) return coming_up(ctx_, {memory_of(w.gate)});
  coming_up(ctx_, {memory_of(w.gate), first_matrix(w.experts, taken, w.experts.gate_matrix(0)),
                   first_matrix(w.experts, taken, w.experts.up_matrix(0))});
}

void Prefetch::before_next_layer(Index layer) const {
  if (!few_tokens_) return;
  const auto next = static_cast<std::size_t>(layer) + 1;
  if (next == weights_.layers.size()) return coming_up(ctx_, {memory_of(weights_.head)});
  const LayerTensors& w = weights_.layers[next];
  coming_up(ctx_, {memory_of(w.q.weight), memory_of(w.k.weight), memory_of(w.v.weight)});
}

}  // namespace dsmoe
