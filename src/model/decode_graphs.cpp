#include "model/decode_graphs.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "core/device.h"
#include "model/transformer.h"

namespace dsmoe {

DecodeGraphs::DecodeGraphs() = default;
DecodeGraphs::~DecodeGraphs() = default;

bool DecodeGraphs::serve(const Context& ctx, const Transformer& model, const ForwardBatch& batch, const PassHooks& hooks) {
  if (ctx.backend() != Backend::kCuda || !batch.pool() || hooks.routing || hooks.layer || hooks.overrides) return false;
  if (model.is_spread()) return false;  // its layers look at what the gate chose
  for (std::size_t i = 0; i < batch.slices().size(); ++i) {
    const ops::Slice& s = batch.slices()[i];
    if (s.rows != 1 || batch.logits(i) != 1 || model.rope().scaled_by(s.context)) return false;
  }
  return true;
}

Index DecodeGraphs::rows_for(Index sequences) {
  if (sequences <= 8) return static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(sequences)));
  const Index step = sequences <= 32 ? 8 : sequences <= 64 ? 16 : sequences <= 256 ? 32 : 64;
  return (sequences + step - 1) / step * step;
}

void DecodeGraphs::make_room() {
  while (captured_.size() >= kMost)
    captured_.erase(std::min_element(captured_.begin(), captured_.end(),
                                     [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
}

namespace {

// The batch's tokens, and behind them those of the padding. Some may be known to the GPU alone (ForwardBatch::take_ids()).
void fill_ids(Context& ctx, const ForwardBatch& batch, const ForwardBatch& padded, Tensor& ids) {
  if (batch.placed_ids().numel() == 0) {
    device::upload(ids.raw_mutable(), padded.ids().data(), ids.bytes(), ctx.stream());
    return;
  }
  std::vector<ops::TokenCopy> copies;
  for (Index i = 0; i < padded.tokens(); ++i)
    copies.push_back({static_cast<std::int32_t>(i < batch.tokens() ? i : batch.shortest()), static_cast<std::int32_t>(i)});
  ops::copy_tokens(ctx, batch.placed_ids(), copies, ids);
}

}  // namespace

DecodeGraphs::Captured& DecodeGraphs::launch(Context& ctx, const Transformer& model, const ForwardBatch& batch,
                                             ops::Sampling* sampling) {
  batch.check();
  model.finish_updates();  // captured passes do not wait for them
  const ForwardBatch rows = batch.padded(sampling ? batch.tokens() : rows_for(batch.tokens()));
  // A power of two: sequences grow, and a pass serves them until their keys have doubled.
  const auto keys = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(ops::keys_of(rows.slices()))));
  const Key key{&model, sampling ? sampling->ids.raw() : nullptr, rows.tokens(), keys};
  auto found = captured_.find(key);
  const bool is_new = found == captured_.end();
  if (is_new) {
    make_room();
    found = captured_
                .emplace(key, Captured{ops::reserved(ctx, {rows.tokens(), keys}),
                                       sampling ? sampling->ids : ctx.empty(DType::kI32, {rows.tokens()}), Tensor(),
                                       sampling ? std::optional(*sampling) : std::nullopt, nullptr})
                .first;
  }
  Captured& c = found->second;
  c.used = ++launches_;
  ops::fill(ctx, c.slices, rows.slices());
  if (!sampling) fill_ids(ctx, batch, rows, c.ids);
  if (is_new) {
    ctx.fault_word();  // is there before the capture
    if (!memory_) memory_ = device::graph_memory();
    try {
      c.graph = device::capture(
          ctx.stream(),
          [&] {
            Tensor logits = model.decode(ctx, rows, c.slices, c.ids);
            if (sampling) ops::sample(ctx, logits, *sampling);
            c.logits = Tensor::wrap(std::as_const(logits).raw(), logits.dtype(), logits.shape(), {}, Device::kCuda);
          },
          memory_);
      ++captures_;
    } catch (...) {
      captured_.erase(found);
      throw;
    }
  }
  device::launch(*c.graph, ctx.stream());
  batch.advance();
  return c;
}

Tensor DecodeGraphs::logits(Context& ctx, const Transformer& model, const ForwardBatch& batch) {
  const Captured& c = launch(ctx, model, batch, nullptr);
  Tensor out = ctx.empty(c.logits.dtype(), {batch.tokens(), c.logits.dim(1)});
  device::copy(out.raw_mutable(), Device::kCuda, c.logits.raw(), Device::kCuda, out.bytes(), ctx.stream());
  return out;
}

void DecodeGraphs::step(Context& ctx, const Transformer& model, const ForwardBatch& batch, ops::Sampling& sampling) {
  launch(ctx, model, batch, &sampling);
}

}  // namespace dsmoe
