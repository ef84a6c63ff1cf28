// What tests on a GPU share: a Context, the paths to run on, and tensors of the GPU in this machine's memory.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "dsmoe/moe.h"
#include "ops/cuda/device.h"
#include "ops/cuda/heuristics.h"
#include "ops/gate.h"

namespace dsmoe::test {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::available()) GTEST_SKIP() << cuda::describe_device();
    ctx_ = std::make_unique<Context>(1, Backend::kCuda);
  }
  Context& ctx() { return *ctx_; }

 private:
  std::unique_ptr<Context> ctx_;
};

// Forces a path as long as it lives.
class Forced {
 public:
  explicit Forced(cuda::Path path) { cuda::force_path(path); }
  ~Forced() { cuda::force_path(cuda::Path::kAuto); }
};

// The paths that this device has for a layer of these sizes.
inline std::vector<cuda::Path> paths_for(DType dtype, Index model_width, Index expert_width) {
  using cuda::Path;
  const Path best = cuda::choose_path(dtype, model_width, expert_width);
  if (dtype == DType::kF32) return {Path::kAuto};
  if (best == Path::kHopper) return {Path::kHopper, Path::kMma};
  return {best};
}

inline Routing fetch(Context& ctx, const Routing& r) {
  return {ctx.fetch(r.experts), ctx.fetch(r.weights), ctx.fetch(r.scores)};
}
inline MoeGradients fetch(Context& ctx, const MoeGradients& g) {
  MoeGradients on_cpu;
  on_cpu.gate = ctx.fetch(g.gate);
  on_cpu.experts = Experts(ctx.fetch(g.experts.gate_up()), ctx.fetch(g.experts.down()));
  if (g.shared_gate.numel() > 0) on_cpu.shared_gate = ctx.fetch(g.shared_gate);
  return on_cpu;
}
inline ops::Plan fetch(Context& ctx, const ops::Plan& p) {
  ops::Plan on_cpu = p;
  for (Tensor* t : {&on_cpu.offset, &on_cpu.token, &on_cpu.weight, &on_cpu.slot_row, &on_cpu.slot_weight,
                    &on_cpu.tiles.count, &on_cpu.tiles.list, &on_cpu.tiles.sorted_offset, &on_cpu.tiles.token_sorted})
    *t = ctx.fetch(*t);
  return on_cpu;
}

}  // namespace dsmoe::test
