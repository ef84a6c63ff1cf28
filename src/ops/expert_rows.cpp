#include "ops/expert_rows.h"

#include <cstring>

#include "ops/backend.h"
#include "ops/cpu/tasks.h"
#include "ops/mixed.h"
#include "ops/plan.h"

namespace dsmoe::ops {

namespace {

// Only the CPU's kernels can leave sums unrounded.
template <class Result = void>
auto no_reference(const char* op) {
  return [op]() -> Result { fail(ErrorCode::kUnsupported, "[{}] is not among the plain loops; run this on the CPU", op); };
}

void down_sums(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h, Tensor& y) {
  w.mixed() ? cpu::experts_down_combine_mixed(ctx, w, plan.view(), h, y)
            : cpu::experts_down_combine(ctx, w, plan.view(), h, y);
}

void add_rows_on_cpu(Context& ctx, const Tensor& row, const Tensor& weight, const Tensor& rows, Tensor& sums) {
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

Tensor gathered_on_cpu(Context& ctx, const Tensor& from, const Tensor& index) {
  const Index count = index.numel();
  const std::int32_t* const at = index.data<std::int32_t>();
  Tensor to = ctx.empty(from.dtype(), {count, from.dim(1)});
  const std::size_t bytes = row_bytes(from.dtype(), from.dim(1));
  const auto* const source = static_cast<const char*>(from.raw());
  auto* const target = static_cast<char*>(to.raw_mutable());
  dsmoe::cpu::each_block(ctx, count, dsmoe::cpu::kTokensPerTask, [&](Index first, Index last, int) {
    for (Index i = first; i < last; ++i)
      std::memcpy(target + static_cast<std::size_t>(i) * bytes, source + static_cast<std::size_t>(at[i]) * bytes, bytes);
  });
  return to;
}

}  // namespace

Plan plan_of_rows(Context& ctx, const MoeConfig& config, std::span<const std::int32_t> expert,
                  std::span<const float> weight, Index experts, DType dtype) {
  const auto rows = static_cast<Index>(expert.size());
  require(weight.size() == expert.size(), "[plan_of_rows] {} weights for {} rows", weight.size(), rows);
  MoeConfig one;
  one.hidden_size = config.hidden_size, one.expert_size = config.expert_size;
  one.routed_experts = experts, one.experts_per_token = 1, one.shared_experts = 0;
  const Chosen chosen{{}, Tensor::view_of(expert).reshape({rows, 1}), Tensor::view_of(weight).reshape({rows, 1}), {}};
  const auto on_cpu = [&] {
    Plan plan = make_plan(one, chosen, 0);
    plan.slot_weight = {};  // the caller's memory
    return plan;
  };
  return on_backend(ctx, on_cpu, on_cpu, [&] { return cuda::gated(ctx, one, chosen, 0, dtype).plan; });
}

Tensor expert_rows(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h) {
  return on_backend(
      ctx, no_reference<Tensor>("expert_rows"),
      [&] {
        Plan plain = plan;
        plain.weight = Tensor(DType::kF32, {plan.rows()});
        for (float& x : plain.weight.span<float>()) x = 1;
        Tensor rows = ctx.empty(DType::kF32, {plan.tokens, w.model_width()});
        down_sums(ctx, w, plain, h, rows);
        return rows;
      },
      [&] { return cuda::expert_rows(ctx, w, plan, h); });
}

Tensor expert_row_grads(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d) {
  return on_backend(
      ctx, no_reference<Tensor>("expert_row_grads"),
      [&] {
        Tensor rows = ctx.empty(DType::kF32, {plan.tokens, w.model_width()});
        // x + -0 is x for every x, also for -0.
        for (float& x : rows.span<float>()) x = -0.0f;
        cpu::experts_gate_up_backward(ctx, w, plan.view(), d, rows);
        return rows;
      },
      [&] { return cuda::expert_row_grads(ctx, w, plan, d); });
}

Tensor shared_sums(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h) {
  return on_backend(
      ctx, no_reference<Tensor>("shared_sums"),
      [&] {
        Tensor y = ctx.empty(DType::kF32, {plan.tokens, w.model_width()});
        down_sums(ctx, w, plan, h, y);
        return y;
      },
      [&] { return cuda::shared_sums(ctx, w, plan, h); });
}

void add_shared_grads(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d, Tensor& dx) {
  on_backend(
      ctx, no_reference("add_shared_grads"), [&] { cpu::experts_gate_up_backward(ctx, w, plan.view(), d, dx); },
      [&] { cuda::add_shared_grads(ctx, w, plan, d, dx); });
}

void add_rows(Context& ctx, const Tensor& row, const Tensor& weight, const Tensor& rows, Tensor& sums) {
  require(row.rank() == 2 && row.dtype() == DType::kI32 && sums.dtype() == DType::kF32 && sums.dim(0) == row.dim(0) &&
              rows.dim(1) == sums.dim(1),
          "[add_rows] rows {} at {} cannot be added to {} {}", rows.shape(), row.shape(), to_string(sums.dtype()),
          sums.shape());
  const auto on_cpu = [&] { add_rows_on_cpu(ctx, row, weight, rows, sums); };
  on_backend(ctx, on_cpu, on_cpu, [&] { cuda::add_rows(ctx, row, weight, rows, sums); });
}

Tensor gathered_rows(Context& ctx, const Tensor& from, const Tensor& index) {
  const auto on_cpu = [&] { return gathered_on_cpu(ctx, from, index); };
  return on_backend(ctx, on_cpu, on_cpu, [&] { return cuda::gathered_rows(ctx, from, index); });
}

}  // namespace dsmoe::ops
