// The gate on a GPU: scores, choice and plan, balance losses, and their gradients. Nothing here waits for the device: calls
// launch kernels on the Context's stream and return.
#include "ops/gate.h"

#include <limits>
#include <vector>

#include "core/device.h"
#include "core/fail.h"
#include "core/fault.h"
#include "core/log.h"
#include "ops/cuda/add_norm.h"
#include "ops/cuda/hopper.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/packed.h"
#include "ops/cuda/router_z.h"
#include "ops/linear.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;
using gpu::Path;

namespace {

void check_sizes(const MoeConfig& c, Index tokens) {
  require(c.hidden_size > 0 && c.expert_size > 0, "hidden_size {} and expert_size {} must be positive", c.hidden_size,
          c.expert_size);
  require(c.routed_experts > 0 && c.routed_experts <= 2048, "routed_experts is {}, expected 1 to 2048", c.routed_experts);
  require(c.experts_per_token > 0 && c.experts_per_token <= c.routed_experts && c.experts_per_token <= 64,
          "experts_per_token is {}, expected 1 to the smaller of 64 and routed_experts ({})", c.experts_per_token,
          c.routed_experts);
  require(c.shared_experts >= 0, "shared_experts is {}", c.shared_experts);
  require(c.groups > 0 && c.routed_experts % c.groups == 0 && c.groups_per_token > 0 && c.groups_per_token <= c.groups &&
              c.routed_experts / c.groups * c.groups_per_token >= c.experts_per_token,
          "groups ({}) must divide routed_experts ({}), and groups_per_token ({}) of them hold experts_per_token ({})",
          c.groups, c.routed_experts, c.groups_per_token, c.experts_per_token);
  require(c.devices > 0 && c.routed_experts % c.devices == 0, "devices ({}) must divide routed_experts ({})", c.devices,
          c.routed_experts);
  require(tokens >= 0 && tokens * c.slots() < std::numeric_limits<std::int32_t>::max() / 2,
          "{} tokens times {} experts each are too many rows", tokens, c.slots());
}

// 0: all tokens are one sequence.
Index length_of(Index tokens, Index sequence_length) {
  require(sequence_length >= 0 && (sequence_length == 0 || tokens % sequence_length == 0),
          "sequence_length ({}) must divide the number of tokens ({})", sequence_length, tokens);
  return sequence_length > 0 ? sequence_length : tokens;
}

bool has_balance_loss(const MoeConfig& c) {
  return c.seq_balance_alpha != 0 || c.batch_balance_alpha != 0 || c.device_balance_alpha != 0;
}

template <class T>
const T* in(const Tensor& t) {
  return static_cast<const T*>(t.raw());
}
template <class T>
T* out(Tensor& t) {
  return static_cast<T*>(t.raw_mutable());
}

gpu::ChosenView view_of(Context& ctx, const MoeConfig& c, Chosen& chosen) {
  return {out<std::int32_t>(chosen.experts), out<float>(chosen.weights), out<float>(chosen.scores), ctx.fault_word(),
          fault_of(FaultCode::kScoresNotFinite, c.layer_index)};
}

const float* bias_of(const MoeConfig& c, const Tensor& bias) { return c.selection_bias ? in<float>(bias) : nullptr; }

struct Piece {
  Tensor* tensor;
  DType dtype;
  Shape shape;
};
// Tensors side by side in one block of memory, which any of them keeps alive: one request instead of ten.
void allocate_together(Context& ctx, std::initializer_list<Piece> pieces) {
  constexpr Index kAlign = 256;
  std::vector<Index> at{0};
  for (const Piece& p : pieces)
    at.push_back(at.back() + (static_cast<Index>(row_bytes(p.dtype, p.shape.numel())) + kAlign - 1) / kAlign * kAlign);
  const auto block = std::make_shared<Tensor>(ctx.empty(DType::kU8, {at.back()}));
  auto* const base = static_cast<char*>(block->raw_mutable());
  auto offset = at.begin();
  for (const Piece& p : pieces) *p.tensor = Tensor::wrap(base + *offset++, p.dtype, p.shape, block, Device::kCuda);
}

Gated make_room(Context& ctx, const MoeConfig& c, Index tokens, Tensor& counts, Index chunks) {
  const Index e = c.routed_experts, k = c.experts_per_token;
  Gated g;
  allocate_together(ctx, {{&g.chosen.scores, DType::kF32, {tokens, e}},
                          {&g.chosen.experts, DType::kI32, {tokens, k}},
                          {&g.chosen.weights, DType::kF32, {tokens, k}}});
  Plan& p = g.plan;
  p.tokens = tokens, p.shared = c.shared_experts, p.routed = e, p.chosen = k;
  p.slot_weight = g.chosen.weights;
  const Index rows = tokens * (p.shared + k);
  // The counts are in the plan's block because the plan's kernel may still read them when the gate/up product, which starts
  // early, writes its first rows: memory released here could be theirs.
  allocate_together(ctx, {{&p.offset, DType::kI32, {p.shared + e + 1}},
                          {&p.token, DType::kI32, {rows}},
                          {&p.weight, DType::kF32, {rows}},
                          {&p.slot_row, DType::kI32, {tokens, k}},
                          {&p.tiles.count, DType::kI32, {1}},
                          {&p.tiles.list, DType::kI32, {gpu::most_tiles(tokens, k, e), 4}},
                          {&p.tiles.sorted_offset, DType::kI32, {e + 1}},
                          {&p.tiles.token_sorted, DType::kI32, {tokens, k}},
                          {&counts, DType::kI32, {chunks, e}}});
  return g;
}

// The gate's kernel keeps no logits: for the router z-loss they are computed once more.
Tensor lse_of(Context& ctx, const Tensor& x, const Tensor& weight) {
  const Index tokens = x.dim(0), experts = weight.dim(0);
  Tensor logits = ctx.empty(DType::kF32, {tokens, experts}), lse = ctx.empty(DType::kF32, {tokens});
  const Projection product{&weight, &logits};
  cuda::linear(ctx, x, {&product, 1});
  gpu::logits_lse(in<float>(logits), static_cast<int>(tokens), static_cast<int>(experts), out<float>(lse), ctx.stream());
  return lse;
}

void no_tokens(Context& ctx, Plan& p) {
  for (Tensor* t : {&p.offset, &p.tiles.count, &p.tiles.sorted_offset}) ctx.fill_zero(*t);
}

}  // namespace

Gated gate(Context& ctx, const MoeConfig& c, const Tensor& x, const Tensor& weight, const Tensor& bias, Index shared,
           bool training) {
  const Index tokens = x.dim(0);
  check_sizes(c, tokens);
  require(weight.dtype() == x.dtype(), "x is {}, but the gate's weights are {}; on a GPU they have one dtype",
          to_string(x.dtype()), to_string(weight.dtype()));
  invariant(shared == c.shared_experts, "a GPU's list of experts has every shared expert");
  const Path path = gpu::choose_path(x.dtype(), c.hidden_size, c.expert_size);
  const bool few = path == Path::kHopper && !training && gpu::hopper::can_route_few(c, tokens);
  const int chunk = gpu::gate_chunk(gpu::device_info(), tokens, c.hidden_size, c.routed_experts, x.dtype());

  Tensor counts;
  Gated g = make_room(ctx, c, tokens, counts, few ? 0 : (tokens + chunk - 1) / chunk);
  g.plan.tiles.rows = gpu::token_tile(tokens, training);
  if (path == Path::kHopper)
    g.plan.tiles.column_parts = gpu::column_parts(g.plan.rows(), c.hidden_size, x.dtype(), training);
  if (tokens == 0) {
    no_tokens(ctx, g.plan);
    return g;
  }
  log("launch",
      "gate path={} T={} D={} F={} E={} S={} K={} dtype={} tile={} column_parts={} one_launch={} tokens_per_block={}",
      gpu::to_string(path), tokens, c.hidden_size, c.expert_size, c.routed_experts, shared, c.experts_per_token,
      to_string(x.dtype()), g.plan.tiles.rows, g.plan.tiles.column_parts, few, few ? tokens : chunk);

  const gpu::GateInput input{x.raw(), weight.raw(), bias_of(c, bias), x.dtype(), static_cast<int>(tokens)};
  const gpu::ChosenView chosen = view_of(ctx, c, g.chosen);
  const gpu::Sizes sizes = gpu::sizes_of(g.plan, c.hidden_size, c.expert_size);
  const gpu::PlanView plan = gpu::view_of(g.plan);
  if (few) {
    gpu::hopper::route_few(c, sizes, input, chosen, plan, ctx.stream());
  } else {
    const bool mma = path != Path::kPlain && c.hidden_size % 8 == 0;
    gpu::gate(c, input, mma, chunk, chosen, out<std::int32_t>(counts), ctx.stream());
    gpu::make_plan(sizes, chosen, in<std::int32_t>(counts), chunk, plan, ctx.stream());
  }
  if (training && c.router_z_alpha > 0) g.chosen.lse = lse_of(ctx, x, weight);
  return g;
}

std::optional<Gated> gate(Context& ctx, const MoeConfig& c, const AddNorm& x, const Tensor& weight, const Tensor& bias,
                          Index shared, const Experts& experts, Tensor& h) {
  if (x.x.dim(0) != 1 || x.dtype != DType::kBF16 || x.y.numel() == 0 || x.y.dtype() != DType::kF32 ||
      x.weight.dtype() != DType::kBF16 || weight.dtype() != DType::kBF16 || shared != c.shared_experts ||
      !gpu::hopper::can_route_one(c) || gpu::choose_path(x.dtype, c.hidden_size, c.expert_size) != Path::kHopper)
    return {};
  check_sizes(c, 1);
  Tensor counts;
  Gated g = make_room(ctx, c, 1, counts, 0);
  const gpu::Sizes sizes = gpu::sizes_of(g.plan, c.hidden_size, c.expert_size);
  const bool one = experts.packed() ? gpu::packed::is_one_token(sizes) : gpu::hopper::is_one_token(sizes);
  if (!one) return {};
  g.plan.tiles.rows = gpu::token_tile(1, /*training=*/false);
  g.plan.tiles.column_parts = gpu::column_parts(g.plan.rows(), c.hidden_size, x.dtype, /*training=*/false);
  log("launch", "gate path=hopper T=1 D={} F={} E={} S={} K={} normed", c.hidden_size, c.expert_size, c.routed_experts,
      shared, c.experts_per_token);
  h = ctx.empty(x.dtype, x.x.shape());
  Tensor sum = ctx.empty(DType::kF32, x.x.shape());
  gpu::hopper::route_one(c, sizes, {nullptr, weight.raw(), bias_of(c, bias), x.dtype, 1}, gpu::add_norm_row<float>(x, sum),
                         out<gpu::hopper::bf16>(h), view_of(ctx, c, g.chosen), gpu::view_of(g.plan), ctx.stream());
  x.x = sum;
  return g;
}

Gated gated(Context& ctx, const MoeConfig& c, const Chosen& chosen, Index shared, DType dtype) {
  const Index tokens = chosen.experts.dim(0), experts = c.routed_experts, k = c.experts_per_token;
  check_sizes(c, tokens);
  invariant(shared == c.shared_experts, "a GPU's list of experts has every shared expert");
  const int chunk = gpu::gate_chunk(gpu::device_info(), tokens, c.hidden_size, experts, dtype);
  const Index chunks = (tokens + chunk - 1) / chunk;
  Tensor counts;
  Gated g = make_room(ctx, c, tokens, counts, chunks);
  g.plan.tiles.rows = gpu::token_tile(tokens, /*training=*/false);
  if (tokens == 0) {
    no_tokens(ctx, g.plan);
    return g;
  }
  g.chosen = {ctx.place(chosen.scores), ctx.place(chosen.experts), ctx.place(chosen.weights), {}};
  g.plan.slot_weight = g.chosen.weights;
  Tensor counted = Tensor::zeros(DType::kI32, {chunks, experts});
  const std::int32_t* const expert = chosen.experts.data<std::int32_t>();
  for (Index i = 0; i < tokens * k; ++i) counted.data<std::int32_t>()[i / k / chunk * experts + expert[i]]++;
  device::upload(counts.raw_mutable(), counted.raw(), counted.bytes(), ctx.stream());
  gpu::make_plan(gpu::sizes_of(g.plan, c.hidden_size, c.expert_size), view_of(ctx, c, g.chosen), in<std::int32_t>(counts),
                 chunk, gpu::view_of(g.plan), ctx.stream());
  return g;
}

Plan plan_of_shared(Context& ctx, Index tokens, Index shared) {
  const Index rows = shared * tokens;
  require(rows >= 0 && rows < std::numeric_limits<std::int32_t>::max() / 2, "{} tokens are too many rows", tokens);
  Plan p;
  p.tokens = tokens, p.shared = shared;
  allocate_together(
      ctx, {{&p.offset, DType::kI32, {shared + 1}}, {&p.token, DType::kI32, {rows}}, {&p.weight, DType::kF32, {rows}}});
  p.tiles.rows = gpu::dense_tile(tokens);
  gpu::make_plan_of_shared(static_cast<int>(tokens), static_cast<int>(shared), gpu::view_of(p), ctx.stream());
  return p;
}

namespace {

// `counts`: where those of the whole batch are.
gpu::BalanceInput balance_input(Context& ctx, const Chosen& chosen, Index length, const BatchLoad* whole, Tensor& counts) {
  gpu::BalanceInput input{in<std::int32_t>(chosen.experts), in<float>(chosen.scores), chosen.scores.dim(0), length};
  if (whole == nullptr) return input;
  const std::vector<float> load(whole->load.begin(), whole->load.end());
  counts = ctx.place(Tensor::view_of(std::span(load)));
  input.whole_counts = in<float>(counts), input.whole_tokens = whole->tokens, input.whole_sequences = whole->sequences;
  return input;
}

}  // namespace

Tensor balance_losses(Context& ctx, const MoeConfig& c, const Chosen& chosen, Index sequence_length,
                      const BatchLoad* whole) {
  const Index tokens = chosen.scores.dim(0), length = length_of(tokens, sequence_length);
  const bool balance = has_balance_loss(c), router_z = c.router_z_alpha > 0;
  if (tokens == 0 || !(balance || router_z)) return ctx.zeros(DType::kF64, {4});
  Tensor losses = balance ? ctx.empty(DType::kF64, {4}) : ctx.zeros(DType::kF64, {4});
  if (balance) {
    Tensor scratch = ctx.empty(DType::kF32, {static_cast<Index>(gpu::balance_floats(c, tokens, length))});
    Tensor counts;
    gpu::balance(c, balance_input(ctx, chosen, length, whole, counts), out<float>(scratch), out<double>(losses),
                 ctx.stream());
  }
  if (router_z)
    gpu::router_z_loss(in<float>(chosen.lse), static_cast<int>(tokens), static_cast<int>(whole ? whole->tokens : tokens),
                       c.router_z_alpha, out<double>(losses) + 3, ctx.stream());
  return losses;
}

namespace {

// dx and dweight from the gradient of the logits. The Hopper products take it as the sum of two bf16, and leave what the
// halves give apart.
void products_backward(Context& ctx, const MoeConfig& c, const Tensor& x, const Tensor& weight, const Tensor& dlogits,
                       bool hopper, bool mma, Tensor& dx, Tensor& dweight, bool accumulate) {
  const int tokens = static_cast<int>(x.dim(0)), width = static_cast<int>(c.hidden_size);
  const int experts = static_cast<int>(c.routed_experts), split = gpu::split_experts(experts);
  const int slices = gpu::gate_slices(tokens), halves = hopper ? 2 : 1, stride = hopper ? split : experts;
  Tensor partial = ctx.empty(DType::kF32, {slices * halves, stride, width});
  if (hopper) {
    using gpu::hopper::bf16;
    gpu::Sizes s{};
    s.tokens = tokens, s.width = width;
    gpu::hopper::gate_input_backward(s, experts, split, in<bf16>(dlogits), in<bf16>(weight), out<bf16>(dx), ctx.stream());
    gpu::hopper::gate_weight_backward(s, split, gpu::gate_slice(tokens), in<bf16>(dlogits), in<bf16>(x),
                                      out<float>(partial), ctx.stream());
  } else {
    const gpu::GateProducts p{x.dtype(), mma, tokens, experts, width, in<float>(dlogits)};
    gpu::gate_input_backward(p, weight.raw(), dx.raw_mutable(), ctx.stream());
    gpu::gate_weight_backward(p, x.raw(), out<float>(partial), ctx.stream());
  }
  const auto d = static_cast<std::size_t>(width);
  gpu::add_slices(in<float>(partial), slices * halves, static_cast<std::size_t>(stride) * d,
                  static_cast<std::size_t>(experts) * d, dweight.dtype(), dweight.raw_mutable(), accumulate, ctx.stream());
}

}  // namespace

Tensor gate_backward(Context& ctx, const MoeConfig& c, const Tensor& x, const Tensor& weight, const GateBackward& args,
                     Tensor& dweight) {
  const Index tokens = x.dim(0), length = length_of(tokens, args.sequence_length);
  check_sizes(c, tokens);
  require(dweight.dtype() == DType::kF32 || dweight.dtype() == x.dtype(),
          "the gradient of the gate is {}, expected f32 or {}", to_string(dweight.dtype()), to_string(x.dtype()));
  Tensor dx = ctx.empty(x.dtype(), x.shape());
  if (tokens == 0) {
    if (!args.accumulate) ctx.fill_zero(dweight);
    return dx;
  }
  const Path path = gpu::choose_path(x.dtype(), c.hidden_size, c.expert_size);
  const bool hopper = path == Path::kHopper;
  log("launch", "gate_backward path={} T={} D={} E={} slices={}", gpu::to_string(path), tokens, c.hidden_size,
      c.routed_experts, gpu::gate_slices(tokens));

  gpu::ScoresBackward scores{};
  Tensor whole_counts;
  scores.chosen = balance_input(ctx, args.chosen, length, args.whole, whole_counts);
  scores.slot_row = in<std::int32_t>(args.plan.slot_row);
  scores.weight_grad = in<float>(args.row_weight_grads);
  scores.parts = static_cast<int>(args.row_weight_grads.dim(1));
  scores.balance_scale = args.aux_scale;
  scores.scale_factor = args.aux_scale_factor;
  Tensor counts;
  if (has_balance_loss(c) && args.aux_scale != 0) {
    counts = ctx.empty(DType::kF32, {static_cast<Index>(gpu::balance_floats(c, tokens, length))});
    gpu::balance(c, scores.chosen, out<float>(counts), nullptr, ctx.stream());
    scores.balance_counts = in<float>(counts);
  }
  Tensor dlogits = hopper ? ctx.empty(DType::kBF16, {tokens, 2, gpu::split_experts(c.routed_experts)})
                          : ctx.empty(DType::kF32, {tokens, c.routed_experts});
  const gpu::LogitGrad slopes{hopper ? nullptr : out<float>(dlogits), hopper ? dlogits.raw_mutable() : nullptr};
  gpu::gate_scores_backward(c, scores, slopes, ctx.stream());
  if (c.router_z_alpha > 0 && args.aux_scale != 0)
    gpu::router_z_backward(in<float>(args.chosen.lse), in<float>(args.chosen.scores), static_cast<int>(tokens),
                           static_cast<int>(c.routed_experts),
                           2 * args.aux_scale * c.router_z_alpha / static_cast<float>(scores.chosen.all_tokens()),
                           args.aux_scale_factor, slopes, ctx.stream());
  products_backward(ctx, c, x, weight, dlogits, hopper, path != Path::kPlain, dx, dweight, args.accumulate);
  return dx;
}

}  // namespace dsmoe::ops::cuda
