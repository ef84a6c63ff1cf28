#include "model/decode_graphs.h"

#include <algorithm>
#include <bit>

#include "core/device.h"
#include "model/transformer.h"

namespace dsmoe {

bool DecodeGraphs::serve(const Context& ctx, const Transformer& model, const ForwardBatch& batch, const PassHooks& hooks) {
  if (ctx.backend() != Backend::kCuda || !batch.pool() || hooks.routing || hooks.layer || hooks.overrides) return false;
  for (std::size_t i = 0; i < batch.slices().size(); ++i) {
    const ops::Slice& s = batch.slices()[i];
    if (s.rows != 1 || batch.logits(i) != 1 || model.rope().scaled_by(s.context)) return false;
  }
  return true;
}

DecodeGraphs::Captured& DecodeGraphs::launch(Context& ctx, const Transformer& model, const ForwardBatch& batch,
                                             ops::Sampling* sampling) {
  batch.check();
  // A power of two: sequences grow, and a pass serves them until their keys have doubled.
  const auto keys = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(ops::keys_of(batch.slices()))));
  const Key key{&model, sampling ? sampling->ids.raw() : nullptr, batch.tokens(), keys};
  auto found = captured_.find(key);
  const bool is_new = found == captured_.end();
  if (is_new)
    found = captured_
                .emplace(key, Captured{ops::reserved(ctx, {batch.tokens(), keys}),
                                       sampling ? sampling->ids : ctx.empty(DType::kI32, {batch.tokens()}), Tensor(),
                                       sampling ? std::optional(*sampling) : std::nullopt, nullptr})
                .first;
  Captured& c = found->second;
  ops::fill(ctx, c.slices, batch.slices());
  if (!sampling) device::upload(c.ids.raw_mutable(), batch.ids().data(), c.ids.bytes(), ctx.stream());
  if (is_new) {
    ctx.fault_word();  // is there before the capture
    try {
      c.graph = device::capture(ctx.stream(), [&] {
        c.logits = model.decode(ctx, batch, c.slices, c.ids);
        if (sampling) ops::sample(ctx, c.logits, *sampling);
      });
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
  Tensor out = ctx.empty(c.logits.dtype(), c.logits.shape());
  device::copy(out.raw_mutable(), Device::kCuda, c.logits.raw(), Device::kCuda, out.bytes(), ctx.stream());
  return out;
}

void DecodeGraphs::step(Context& ctx, const Transformer& model, const ForwardBatch& batch, ops::Sampling& sampling) {
  launch(ctx, model, batch, &sampling);
}

}  // namespace dsmoe
