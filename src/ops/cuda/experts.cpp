// The experts' grouped products on a GPU. Scratch memory comes from the Context and is released when an op returns, so that
// the next op's takes its place: at any time there is one large buffer of rows of width D.
#include <algorithm>
#include <utility>

#include "core/fail.h"
#include "core/log.h"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/hopper.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/packed.h"
#include "ops/cuda/portable.h"
#include "ops/expert_rows.h"
#include "ops/linear.h"
#include "ops/shared_gate.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;
using gpu::Path;
using gpu::hopper::bf16;

namespace {

const bf16* in(const Tensor& t) { return static_cast<const bf16*>(t.raw()); }
bf16* out(Tensor& t) { return static_cast<bf16*>(t.raw_mutable()); }

// What the launchers of one op take.
struct Launch {
  Launch(Context& context, const char* op, const Plan& p, DType type, Index model_width, Index expert_width)
      : ctx(context),
        dtype(type),
        path(gpu::choose_path(type, model_width, expert_width)),
        hopper(path == Path::kHopper),
        sizes(gpu::sizes_of(p, model_width, expert_width)),
        plan(gpu::view_of(p)),
        slot_weight(static_cast<const float*>(p.slot_weight.raw())),
        column_parts(hopper ? p.tiles.column_parts : 1) {
    log("launch", "{} path={} T={} R={} D={} F={} tile={} column_parts={}", op, gpu::to_string(path), sizes.tokens,
        sizes.rows, sizes.width, sizes.expert_width, sizes.token_tile, column_parts);
  }
  Launch(Context& context, const char* op, const Plan& p, const Experts& w)
      : Launch(context, op, p, w.dtype(), w.model_width(), w.width(0)) {}

  gpu::portable::Step step() const { return {sizes, plan, dtype, path != Path::kPlain, ctx.stream()}; }

  // x [T, D] as rows of the routed experts, in `to`.
  void gather(const Tensor& x, Tensor& to) const {
    if (sizes.routed() == 0) return;
    gpu::gather_rows(sizes, plan, row_bytes(dtype, sizes.width), x.raw(), to.raw_mutable(), ctx.stream());
  }
  Tensor gathered(const Tensor& x) const {
    Tensor rows = ctx.empty(dtype, {sizes.sorted_rows, sizes.width});
    gather(x, rows);
    return rows;
  }

  // y[t] = start[t] + the sum of the token's rows, which `product(rows, first, columns)` makes for a part of D at a time.
  template <class Product>
  void sum_rows(const float* weights, const void* start, Tensor& y, Product&& product) const {
    const int columns = sizes.width / column_parts;
    const int shared_rows = hopper ? std::min(sizes.shared, 1) : sizes.shared;  // Hopper's product adds them up
    Tensor rows = ctx.empty(dtype, {sizes.rows, columns});
    for (int first = 0; first < sizes.width; first += columns) {
      product(rows, first, columns);
      gpu::combine(sizes, plan.slot_row, dtype, {rows.raw(), first, columns, shared_rows, weights, start, y.raw_mutable()},
                   ctx.stream());
    }
  }

  Context& ctx;
  DType dtype;
  Path path;
  bool hopper;
  gpu::Sizes sizes;
  gpu::PlanView plan;
  const float* slot_weight;
  int column_parts;
};

// Shapes and dtypes are checked for all backends (ops/experts.cpp).
void check_stacks(const Experts& w, const char* what) {
  require(w.packed() || (w.stacked() && w.gate_up().device() == Device::kCuda && w.down().device() == Device::kCuda),
          "{} of a GPU's layer are two stacks in its memory; copy them there with to(Device::kCuda)", what);
}

// Packed experts (packed.h). Shared ones are one wide MLP, of which each expert is a part of the rows of gate and up, and
// of the columns of down.
gpu::packed::ExpertMatrices packed_matrices(const Experts& w, Tensor ExpertTensors::*matrix) {
  return {gpu::packed::matrix_of(w.shared_mlp().*matrix), gpu::packed::matrix_of(w.routed_stacks().*matrix)};
}

bool one_token(const Launch& l, const Experts& w) { return !w.packed() && l.hopper && gpu::hopper::is_one_token(l.sizes); }
// A dense layer: its down projection is a product like any other, and there is nothing to add up. (That for few rows is
// made for short ones.)
bool is_one_matrix(const Launch& l) {
  return l.hopper && l.sizes.routed() == 0 && l.sizes.shared == 1 && l.sizes.tokens > gpu::kTinyTile;
}
bool few(const Launch& l, const Experts& w) {
  return w.packed() && l.hopper && gpu::unpacks_in_product(l.sizes.tokens, /*grouped=*/true);
}
// The weights that the bf16 kernels take: the stack, or what is packed, of the experts in use.
Tensor gate_up_stack(const Launch& l, const Experts& w) {
  if (!w.packed()) return w.gate_up();
  const Index f = w.width(0), d = w.model_width(), matrix = f * d;
  Tensor stack = l.ctx.empty(DType::kBF16, {w.count(), 2, f, d});
  for (const auto& [part, offset] : {std::pair{&ExpertTensors::gate_proj, Index{0}}, {&ExpertTensors::up_proj, matrix}}) {
    const gpu::packed::ExpertMatrices m = packed_matrices(w, part);
    gpu::packed::Unpacked to{out(stack) + offset, static_cast<int>(f), static_cast<int>(d), 2 * matrix, d, 0, nullptr};
    gpu::packed::unpack(m.shared, to, l.ctx.stream());
    to.to += w.shared() * 2 * matrix, to.offsets = l.plan.offset + w.shared();
    gpu::packed::unpack(m.routed, to, l.ctx.stream());
  }
  gpu::packed::end_unpacking(l.ctx.stream());
  return stack;
}

Tensor down_stack(const Launch& l, const Experts& w) {
  if (!w.packed()) return w.down();
  const Index f = w.width(0), d = w.model_width(), matrix = f * d;
  Tensor stack = l.ctx.empty(DType::kBF16, {w.count(), d, f});
  const gpu::packed::ExpertMatrices m = packed_matrices(w, &ExpertTensors::down_proj);
  gpu::packed::Unpacked to{out(stack), static_cast<int>(d), static_cast<int>(f), matrix, f, matrix, nullptr};
  gpu::packed::unpack(m.shared, to, l.ctx.stream());
  to.to += w.shared() * matrix, to.offsets = l.plan.offset + w.shared();
  gpu::packed::unpack(m.routed, to, l.ctx.stream());
  gpu::packed::end_unpacking(l.ctx.stream());
  return stack;
}

}  // namespace

Tensor experts_gate_up(Context& ctx, const Experts& w, const Plan& plan, const Tensor& x, ExpertActivations* keep) {
  check_stacks(w, "experts");
  const Launch l(ctx, "experts_gate_up", plan, w);
  Tensor h = ctx.empty(x.dtype(), {plan.rows(), l.sizes.expert_width});
  if (keep) keep->gate_up = ctx.empty(x.dtype(), {plan.rows(), 2 * l.sizes.expert_width});
  if (plan.tokens == 0) return h;
  void* const kept = keep ? keep->gate_up.raw_mutable() : nullptr;
  if (few(l, w)) {
    gpu::packed::gate_up_few(l.sizes, l.plan, in(x), packed_matrices(w, &ExpertTensors::gate_proj),
                             packed_matrices(w, &ExpertTensors::up_proj), out(h), ctx.stream());
    return h;
  }
  const Tensor stack = gate_up_stack(l, w);
  if (!keep && one_token(l, w)) {
    gpu::hopper::gate_up_one(l.sizes, l.plan, in(x), in(stack), out(h), ctx.stream());
    return h;
  }
  if (!l.hopper) {
    gpu::portable::gate_up(l.step(), x.raw(), stack.raw(), h.raw_mutable(), kept);
    return h;
  }
  Tensor rows;
  if (l.sizes.routed() > 0 && gpu::gathers_first(l.sizes.token_tile)) rows = l.gathered(x);
  gpu::hopper::gate_up(l.sizes, l.plan, in(x), in(rows), in(stack), out(h), static_cast<bf16*>(kept), ctx.stream());
  return h;
}

Tensor experts_down_combine(Context& ctx, const Experts& w, const Plan& plan, const Tensor& hidden) {
  check_stacks(w, "experts");
  const Launch l(ctx, "experts_down_combine", plan, w);
  const Tensor h = plan.weighs_shared ? weighed_rows(ctx, plan, hidden) : hidden;
  Tensor y = ctx.empty(h.dtype(), {plan.tokens, l.sizes.width});
  if (plan.tokens == 0) return y;
  const Tensor stack = few(l, w) ? Tensor() : down_stack(l, w);
  if (few(l, w) && gpu::packed::is_one_token(l.sizes)) {
    gpu::packed::down_one(l.sizes, l.plan, in(h), packed_matrices(w, &ExpertTensors::down_proj), l.slot_weight, out(y),
                          ctx.stream());
    return y;
  }
  if (one_token(l, w)) {
    gpu::hopper::down_one(l.sizes, l.plan, in(h), in(stack), l.slot_weight, out(y), ctx.stream());
    return y;
  }
  if (is_one_matrix(l) && !few(l, w)) {
    const Tensor matrix = stack.reshape({l.sizes.width, l.sizes.expert_width});
    const Projection down{&matrix, &y};
    cuda::linear(ctx, h, {&down, 1});
    return y;
  }
  l.sum_rows(l.slot_weight, nullptr, y, [&](Tensor& rows, int first, int columns) {
    if (few(l, w))
      gpu::packed::down_few(l.sizes, l.plan, in(h), packed_matrices(w, &ExpertTensors::down_proj), out(rows), ctx.stream());
    else if (l.hopper)
      gpu::hopper::down(l.sizes, l.plan, in(h), in(stack), out(rows), first, columns, ctx.stream());
    else
      gpu::portable::down(l.step(), h.raw(), stack.raw(), rows.raw_mutable());
  });
  return y;
}

ExpertRowGrads experts_down_backward(Context& ctx, const Experts& w, const Plan& plan, const Tensor& dy,
                                     ExpertActivations kept) {
  check_stacks(w, "experts");
  const Launch l(ctx, "experts_down_backward", plan, w);
  const int parts = l.hopper ? gpu::hopper::hidden_backward_parts(l.sizes) : gpu::portable::hidden_backward_parts(l.sizes);
  ExpertRowGrads d;
  d.gate_up = std::move(kept.gate_up);
  d.scaled_h = ctx.empty(dy.dtype(), {plan.rows(), l.sizes.expert_width});
  d.weight = ctx.empty(DType::kF32, {plan.rows(), parts});
  if (plan.tokens == 0) return d;
  auto* const dots = static_cast<float*>(d.weight.raw_mutable());
  if (l.hopper) {
    d.gathered_dy = l.gathered(dy);
    gpu::hopper::hidden_backward(l.sizes, l.plan, in(dy), in(d.gathered_dy), in(w.down()), out(d.gate_up), out(d.scaled_h),
                                 dots, ctx.stream());
  } else {
    gpu::portable::hidden_backward(l.step(), dy.raw(), w.down().raw(), d.gate_up.raw_mutable(), d.scaled_h.raw_mutable(),
                                   dots);
  }
  return d;
}

namespace {

void hopper_weight_backward(const Launch& l, gpu::hopper::WeightGrad g) {
  const gpu::Sizes& s = l.sizes;
  if (s.shared > 0) g.part_rows = gpu::shared_slice(s.tokens, s.shared, s.rows - s.shared * s.tokens, g.m, s.width);
  if (s.shared > 0) g.parts = (s.tokens + g.part_rows - 1) / g.part_rows;
  if (g.parts == 1) return gpu::hopper::weight_backward(s, l.plan, g, l.ctx.stream());
  Tensor partial = l.ctx.empty(DType::kF32, {g.parts, s.shared, g.m, s.width});
  g.partial = static_cast<float*>(partial.raw_mutable());
  gpu::hopper::weight_backward(s, l.plan, g, l.ctx.stream());
  const auto size = static_cast<std::size_t>(s.shared) * static_cast<std::size_t>(g.m) * static_cast<std::size_t>(s.width);
  gpu::add_slices(g.partial, g.parts, size, size, g.f32 ? DType::kF32 : DType::kBF16, g.grad, g.accumulate, l.ctx.stream());
}

}  // namespace

void experts_weight_backward(Context& ctx, const Plan& plan, const Tensor& x, const Tensor& dy, ExpertRowGrads& d,
                             Experts& grads, bool accumulate) {
  const Index f = d.scaled_h.dim(1);
  check_stacks(grads, "gradients of experts");
  if (plan.tokens == 0) {
    if (!accumulate)
      for (Tensor* t : {&grads.gate_up(), &grads.down()}) ctx.fill_zero(*t);
    return;
  }
  const Launch l(ctx, "experts_weight_backward", plan, x.dtype(), x.dim(1), f);
  const int width = l.sizes.expert_width;
  const bool f32 = grads.gate_up().dtype() == DType::kF32;
  void* const ddown = grads.down().raw_mutable();
  void* const dgate_up = grads.gate_up().raw_mutable();
  if (l.hopper) {
    // x is gathered where dy was.
    Tensor rows = std::exchange(d.gathered_dy, Tensor());
    if (rows.numel() == 0) rows = l.gathered(dy);
    hopper_weight_backward(l, {in(d.scaled_h), in(dy), in(rows), width, true, ddown, f32, accumulate});
    l.gather(x, rows);
    hopper_weight_backward(l, {in(d.gate_up), in(x), in(rows), 2 * width, false, dgate_up, f32, accumulate});
  } else {
    gpu::portable::weight_backward(l.step(), {d.scaled_h.raw(), width, dy.raw(), true, ddown, f32, accumulate});
    gpu::portable::weight_backward(l.step(), {d.gate_up.raw(), 2 * width, x.raw(), false, dgate_up, f32, accumulate});
  }
  d.scaled_h = Tensor();
}

Tensor experts_gate_up_backward(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d, Tensor gate_dx) {
  check_stacks(w, "experts");
  const Launch l(ctx, "experts_gate_up_backward", plan, w);
  const void* const start = gate_dx.numel() > 0 ? gate_dx.raw() : nullptr;
  if (start == nullptr) gate_dx = ctx.empty(w.dtype(), {plan.tokens, w.model_width()});
  if (plan.tokens == 0) return gate_dx;
  l.sum_rows(nullptr, start, gate_dx, [&](Tensor& rows, int first, int columns) {
    if (l.hopper)
      gpu::hopper::input_backward(l.sizes, l.plan, in(d.gate_up), in(w.gate_up()), out(rows), first, columns, ctx.stream());
    else
      gpu::portable::input_backward(l.step(), d.gate_up.raw(), w.gate_up().raw(), rows.raw_mutable());
  });
  return gate_dx;
}

// The same products with all rows left as they are (ops/expert_rows.h).
namespace {

// [R, D], but for the shared experts of a token one row where Hopper's product adds them up.
Tensor down_rows(const Launch& l, const Experts& w, const Tensor& h) {
  Tensor rows = l.ctx.empty(l.dtype, {l.sizes.rows, l.sizes.width});
  if (l.sizes.tokens == 0) return rows;
  if (l.hopper)
    gpu::hopper::down(l.sizes, l.plan, in(h), in(w.down()), out(rows), 0, l.sizes.width, l.ctx.stream());
  else
    gpu::portable::down(l.step(), h.raw(), w.down().raw(), rows.raw_mutable());
  return rows;
}

Tensor input_rows(const Launch& l, const Experts& w, const ExpertRowGrads& d) {
  Tensor rows = l.ctx.empty(l.dtype, {l.sizes.rows, l.sizes.width});
  if (l.sizes.tokens == 0) return rows;
  if (l.hopper)
    gpu::hopper::input_backward(l.sizes, l.plan, in(d.gate_up), in(w.gate_up()), out(rows), 0, l.sizes.width,
                                l.ctx.stream());
  else
    gpu::portable::input_backward(l.step(), d.gate_up.raw(), w.gate_up().raw(), rows.raw_mutable());
  return rows;
}

int shared_rows(const Launch& l) { return l.hopper ? std::min(l.sizes.shared, 1) : l.sizes.shared; }

}  // namespace

Tensor expert_rows(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h) {
  return gathered_rows(ctx, down_rows(Launch(ctx, "expert_rows", plan, w), w, h), plan.slot_row);
}

Tensor expert_row_grads(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d) {
  return gathered_rows(ctx, input_rows(Launch(ctx, "expert_row_grads", plan, w), w, d), plan.slot_row);
}

Tensor shared_sums(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h) {
  const Launch l(ctx, "shared_sums", plan, w);
  Tensor sums = ctx.zeros(DType::kF32, {plan.tokens, l.sizes.width});
  add_rows_in_turn(ctx, shared_rows(l), down_rows(l, w, plan.weighs_shared ? weighed_rows(ctx, plan, h) : h), sums);
  return sums;
}

void add_shared_grads(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d, Tensor& dx) {
  const Launch l(ctx, "add_shared_grads", plan, w);
  add_rows_in_turn(ctx, shared_rows(l), input_rows(l, w, d), dx);
}

}  // namespace dsmoe::ops::cuda
