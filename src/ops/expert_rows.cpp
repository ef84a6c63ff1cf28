#include "ops/expert_rows.h"

#include <cstring>

#include "core/fail.h"
#include "ops/cpu/tasks.h"
#include "ops/mixed.h"

namespace dsmoe::ops {

namespace {

void require_cpu(const Context& ctx) {
  if (ctx.backend() != Backend::kCpu)
    fail(ErrorCode::kUnsupported, "experts that are spread over ranks run on the CPU alone so far; use device cpu");
}

}  // namespace

Plan rows_apart(const Plan& plan, std::span<const std::int32_t> place) {
  const Index rows = plan.rows();
  require(static_cast<Index>(place.size()) == rows, "[rows_apart] {} places for {} rows", place.size(), rows);
  Plan apart;
  apart.tokens = rows, apart.shared = plan.shared, apart.routed = plan.routed, apart.chosen = plan.chosen;
  apart.offset = plan.offset;
  apart.token = Tensor(DType::kI32, {rows});
  apart.weight = Tensor(DType::kF32, {rows});
  std::copy(place.begin(), place.end(), apart.token.data<std::int32_t>());
  for (float& w : apart.weight.span<float>()) w = 1;
  return apart;
}

Tensor expert_sums(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h) {
  require_cpu(ctx);
  Tensor y = ctx.empty(DType::kF32, {plan.tokens, w.model_width()});
  w.mixed() ? cpu::experts_down_combine_mixed(ctx, w, plan.view(), h, y)
            : cpu::experts_down_combine(ctx, w, plan.view(), h, y);
  return y;
}

void add_expert_grads(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d, Tensor& dx) {
  require_cpu(ctx);
  cpu::experts_gate_up_backward(ctx, w, plan.view(), d, dx);
}

Tensor expert_row_grads(Context& ctx, const Experts& w, const Plan& apart, const ExpertRowGrads& d) {
  Tensor rows = ctx.empty(DType::kF32, {apart.rows(), w.model_width()});
  // x + -0 is x for every x, also for -0.
  for (float& x : rows.span<float>()) x = -0.0f;
  add_expert_grads(ctx, w, apart, d, rows);
  return rows;
}

void add_rows(Context& ctx, const Tensor& row, const Tensor& weight, const Tensor& rows, Tensor& sums) {
  require_cpu(ctx);
  const dsmoe::cpu::KernelTable& kt = dsmoe::cpu::kernels();
  const Index tokens = row.dim(0), k = row.dim(1), width = sums.dim(1);
  const std::int32_t* const at = row.data<std::int32_t>();
  const float* const scale = weight.numel() > 0 ? weight.data<float>() : nullptr;
  const float* const from = rows.data<float>();
  float* const to = sums.data<float>();
  dsmoe::cpu::each_block(ctx, tokens, dsmoe::cpu::kTokensPerTask, [&](Index first, Index last, int) {
    for (Index t = first; t < last; ++t)
      for (Index j = t * k; j < (t + 1) * k; ++j)
        if (at[j] >= 0) kt.add_scaled(width, scale ? scale[j] : 1.0f, from + at[j] * width, to + t * width);
  });
}

Tensor gathered_rows(Context& ctx, const Tensor& from, std::span<const std::int32_t> index) {
  const auto count = static_cast<Index>(index.size());
  Tensor to = ctx.empty(from.dtype(), {count, from.dim(1)});
  const std::size_t bytes = row_bytes(from.dtype(), from.dim(1));
  const auto* const source = static_cast<const char*>(from.raw());
  auto* const target = static_cast<char*>(to.raw_mutable());
  dsmoe::cpu::each_block(ctx, count, dsmoe::cpu::kTokensPerTask, [&](Index first, Index last, int) {
    for (Index i = first; i < last; ++i)
      std::memcpy(target + static_cast<std::size_t>(i) * bytes,
                  source + static_cast<std::size_t>(index[static_cast<std::size_t>(i)]) * bytes, bytes);
  });
  return to;
}

}  // namespace dsmoe::ops
