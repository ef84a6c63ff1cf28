// What all blocks of one pass have in common.
#pragma once

#include <utility>

#include "model/forward_batch.h"
#include "model/hooks.h"
#include "model/prefetch.h"
#include "ops/rope.h"
#include "ops/slice.h"

namespace dsmoe {

struct Pass {
  Pass(Context& ctx, const ForwardBatch& b, const ops::Rope& r, const PassHooks& h, const ModelWeights& weights)
      : batch(b),
        slices(ops::placed(ctx, b.slices())),
        ids(b.placed_ids().numel() > 0 ? b.placed_ids() : Tensor::view_of(b.ids())),
        rope(ops::rope_angles(ctx, r, slices)),
        hooks(h),
        prefetch(ctx, weights, b) {}
  // With slices and tokens that are where the work runs already.
  Pass(Context& ctx, const ForwardBatch& b, const ops::Slices& s, Tensor tokens, const ops::Rope& r, const PassHooks& h,
       const ModelWeights& weights)
      : batch(b),
        slices(s),
        ids(std::move(tokens)),
        rope(ops::rope_angles(ctx, r, slices)),
        hooks(h),
        prefetch(ctx, weights, b) {}
  // With the angles of an earlier pass of the same batch.
  Pass(Context& ctx, const ForwardBatch& b, ops::RopeAngles r, const PassHooks& h, const ModelWeights& weights)
      : batch(b),
        slices(ops::placed(ctx, b.slices())),
        ids(Tensor::view_of(b.ids())),
        rope(std::move(r)),
        hooks(h),
        prefetch(ctx, weights, b) {}

  const ForwardBatch& batch;
  ops::Slices slices;  // the batch's, where the work runs
  Tensor ids;          // [T] i32; on the CPU too, for ops that copy it by themselves
  ops::RopeAngles rope;
  const PassHooks& hooks;
  Prefetch prefetch;
};

}  // namespace dsmoe
