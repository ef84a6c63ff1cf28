#include "model/prefetch.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "core/threads.h"

namespace dsmoe {

namespace {

// So few that a block's time goes into reading its weights; then it pays that threads fetch while they wait.
constexpr Index kFewTokens = 4;

void coming_up(Context& ctx, std::initializer_list<const Tensor*> tensors) {
  constexpr std::size_t kMost = 512 << 10;  // of a tensor: waits are short, and a cache is small
  std::array<std::span<const std::byte>, ThreadPool::kMaxComing> memory;
  std::size_t n = 0;
  for (const Tensor* t : tensors)
    if (n < memory.size()) memory[n++] = {static_cast<const std::byte*>(t->raw()), std::min(kMost, t->bytes())};
  ctx.pool().coming_up(std::span(memory).first(n));
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
    : ctx_(ctx), weights_(weights), batch_(batch), few_tokens_(batch.pool() && batch.tokens() <= kFewTokens) {}

void Prefetch::before_attention(Index layer) const {
  if (!few_tokens_) return;
  const ops::Slice& first = batch_.slices()[0];
  const Tensor keys = first_rows(batch_.pool()->k(layer), first), values = first_rows(batch_.pool()->v(layer), first);
  coming_up(ctx_, {&keys, &values, &weights_.layers[static_cast<std::size_t>(layer)].o.weight});
}

void Prefetch::before_feed_forward(Index layer) const {
  if (!few_tokens_) return;
  const LayerTensors<MoeWeights>& w = weights_.layers[static_cast<std::size_t>(layer)];
  const ExpertTensors& mlp = w.moe.gate.numel() > 0 ? w.moe.shared : w.mlp;
  coming_up(ctx_, {&w.moe.gate, &mlp.gate_proj, &mlp.up_proj});
}

void Prefetch::before_next_layer(Index layer) const {
  if (!few_tokens_) return;
  const auto next = static_cast<std::size_t>(layer) + 1;
  if (next == weights_.layers.size()) return coming_up(ctx_, {&weights_.head});
  const LayerTensors<MoeWeights>& w = weights_.layers[next];
  coming_up(ctx_, {&w.q.weight, &w.k.weight, &w.v.weight});
}

}  // namespace dsmoe
