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

Tensor DecodeGraphs::logits(Context& ctx, const Transformer& model, const ForwardBatch& batch) {
  batch.check();
  // A power of two: sequences grow, and a pass serves them until their keys have doubled.
  const auto keys = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(ops::keys_of(batch.slices()))));
  const Key key{&model, batch.tokens(), keys};
  auto found = captured_.find(key);
  const bool is_new = found == captured_.end();
  if (is_new)
    found = captured_
                .emplace(key, Captured{ops::reserved(ctx, {batch.tokens(), keys}), ctx.empty(DType::kI32, {batch.tokens()}),
                                       Tensor(), nullptr})
                .first;
  Captured& c = found->second;
  ops::fill(ctx, c.slices, batch.slices());
  device::upload(c.ids.raw_mutable(), batch.ids().data(), c.ids.bytes(), ctx.stream());
  if (is_new) {
    ctx.fault_word();  // is there before the capture
    try {
      c.graph = device::capture(ctx.stream(), [&] { c.logits = model.decode(ctx, batch, c.slices, c.ids); });
    } catch (...) {
      captured_.erase(found);
      throw;
    }
  }
  device::launch(*c.graph, ctx.stream());
  batch.advance();
  Tensor out = ctx.empty(c.logits.dtype(), c.logits.shape());
  device::copy(out.raw_mutable(), Device::kCuda, c.logits.raw(), Device::kCuda, out.bytes(), ctx.stream());
  return out;
}

}  // namespace dsmoe
