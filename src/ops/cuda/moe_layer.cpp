// The layer on the device: the steps in order, and where each keeps its memory.
#include "ops/cuda/moe_layer.h"

#include <cuda_runtime_api.h>

#include <limits>

#include "core/fail.h"
#include "core/log.h"
#include "ops/cuda/gate.h"
#include "ops/cuda/hopper.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/portable.h"

namespace dsmoe::cuda {

namespace {

using hopper::bf16;

// Hands out 256-byte aligned pieces; with a null base it only adds up their sizes.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(std::size_t count) {
    const std::size_t at = used_;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

std::size_t rows_of(const Problem& p) { return static_cast<std::size_t>(p.tokens * p.config.slots()); }

void check_problem(const Problem& p) {
  const MoeConfig& c = p.config;
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
  require(c.router_z_alpha == 0, "router_z_alpha is {}; the GPU layer has no router z-loss, only 0 works",
          c.router_z_alpha);
  require(p.tokens >= 0 && rows_of(p) < static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()) / 2,
          "{} tokens times {} experts each are too many rows", p.tokens, c.slots());
  require(p.sequence_length == 0 || (p.sequence_length > 0 && p.tokens % p.sequence_length == 0),
          "sequence_length ({}) must divide the number of tokens ({})", p.sequence_length, p.tokens);
}

bool has_balance_loss(const MoeConfig& c) {
  return c.seq_balance_alpha != 0.0f || c.batch_balance_alpha != 0.0f || c.device_balance_alpha != 0.0f;
}

// Rows of width D are made and summed a part of D at a time when all at once would be large; the bits are the same.
int column_parts(const Problem& p, bool training) {
  constexpr std::size_t kLarge = std::size_t{320} << 20;
  std::size_t parts = 1;
  const auto d = static_cast<std::size_t>(p.config.hidden_size);
  while (training && d % (2 * parts * 128) == 0 && rows_of(p) * (d / parts) * size_of(p.dtype) > kLarge) parts *= 2;
  return static_cast<int>(parts);
}

// Where x is gathered into rows before the products instead of in their loads. Measured on an H200: the copy engine
// feeds wgmma faster than cp.async does, which pays for the extra pass once the products are compute-bound.
bool gathers_first(const Problem& p, bool training) { return token_tile(p, training) == kWideTile; }

struct ForwardMemory {
  std::int32_t* counts;
  char* plan;
  float* balance;
  char* h;
  char* rows;  // x gathered, then, when that is used up, the experts' outputs
  std::size_t bytes;
};
ForwardMemory forward_memory(const Problem& p, bool training, void* base) {
  Arena arena(base);
  const std::size_t element = size_of(p.dtype);
  const auto d = static_cast<std::size_t>(p.config.hidden_size), f = static_cast<std::size_t>(p.config.expert_size);
  ForwardMemory m{};
  m.counts = arena.take<std::int32_t>(static_cast<std::size_t>(p.config.routed_experts) * gate_chunks(p));
  m.plan = arena.take<char>(training ? 0 : plan_bytes(p));
  m.balance = arena.take<float>(balance_floats(p));
  m.h = arena.take<char>(rows_of(p) * f * element);
  const std::size_t sorted = gathers_first(p, training) ? sorted_rows(p) * d : 0;
  m.rows = arena.take<char>(std::max(rows_of(p) * (d / column_parts(p, training)), sorted) * element);
  m.bytes = arena.used();
  return m;
}

struct BackwardMemory {
  float* balance;
  float* weight_grad;
  char* dlogits;
  float* gate_partial;
  char* sorted;  // dy gathered, then x, then the gate's part of dx
  char* rows;    // weighted h, then, when that is used up, the rows of dx
  std::size_t bytes;
};
int weight_grad_parts(const Problem& p) {
  hopper::Sizes s{};
  s.expert_width = static_cast<int>(p.config.expert_size);
  return std::max(hopper::hidden_backward_parts(s), portable::hidden_backward_parts(p));
}
BackwardMemory backward_memory(const Problem& p, void* base) {
  Arena arena(base);
  const std::size_t element = size_of(p.dtype);
  const auto d = static_cast<std::size_t>(p.config.hidden_size), f = static_cast<std::size_t>(p.config.expert_size);
  const auto split = static_cast<std::size_t>(split_experts(p.config.routed_experts));
  BackwardMemory m{};
  m.balance = arena.take<float>(has_balance_loss(p.config) ? balance_floats(p) : 0);
  m.weight_grad = arena.take<float>(rows_of(p) * weight_grad_parts(p));
  m.dlogits = arena.take<char>(static_cast<std::size_t>(p.tokens) * split * 4);  // f32, or two bf16 each
  m.gate_partial = arena.take<float>(p.tokens ? static_cast<std::size_t>(gate_slices(p)) * 2 * split * d : 0);
  m.sorted = arena.take<char>(std::max(sorted_rows(p), static_cast<std::size_t>(p.tokens)) * d * element);
  m.rows = arena.take<char>(rows_of(p) * std::max(f, d / column_parts(p, true)) * element);
  m.bytes = arena.used();
  return m;
}

hopper::Sizes sizes_of(const Problem& p, bool training) {
  const MoeConfig& c = p.config;
  return {static_cast<int>(p.tokens),         static_cast<int>(c.hidden_size),
          static_cast<int>(c.expert_size),    static_cast<int>(c.all_experts()),
          static_cast<int>(c.shared_experts), static_cast<int>(rows_of(p)),
          static_cast<int>(sorted_rows(p)),   token_tile(p, training)};
}

const bf16* in(const void* p) { return static_cast<const bf16*>(p); }
bf16* out(void* p) { return static_cast<bf16*>(p); }

void log_step(const char* what, const Problem& p, Path path, bool training, int parts) {
  const MoeConfig& c = p.config;
  log("launch", "moe {} path={} T={} D={} F={} E={} S={} K={} dtype={} tile={} gate_tokens={} column_parts={}", what,
      to_string(path), p.tokens, c.hidden_size, c.expert_size, c.routed_experts, c.shared_experts, c.experts_per_token,
      dsmoe::to_string(p.dtype), token_tile(p, training), gate_chunk(p), parts);
}

}  // namespace

int token_tile(const Problem& p, bool training) {
  if (training) return kWideTile;
  // Measured on an H200 at the 16B shape: up to a few hundred tokens reading the weights takes longer than the products
  // with them, up to a thousand or two about as long.
  if (p.tokens > 1536) return kWideTile;
  if (p.tokens > 384) return kMiddleTile;
  return p.tokens > 2 ? kNarrowTile : kTinyTile;
}

std::size_t plan_layout(const Problem& p, char* base, Plan* plan) {
  Arena arena(base);
  const auto experts = static_cast<std::size_t>(p.config.all_experts());
  Plan result{};
  result.row_offset = arena.take<std::int32_t>(experts + 1);
  result.tile_count = arena.take<std::int32_t>(1);
  result.tiles = arena.take<TokenTile>(
      static_cast<std::size_t>(p.tokens * p.config.experts_per_token / kTinyTile + p.config.routed_experts));
  result.row_token = arena.take<std::int32_t>(rows_of(p));
  result.row_weight = arena.take<float>(rows_of(p));
  result.token_row = arena.take<std::int32_t>(static_cast<std::size_t>(p.tokens * p.config.experts_per_token));
  result.sorted_offset = arena.take<std::int32_t>(static_cast<std::size_t>(p.config.routed_experts) + 1);
  result.token_sorted = arena.take<std::int32_t>(static_cast<std::size_t>(p.tokens * p.config.experts_per_token));
  if (plan) *plan = result;
  return arena.used();
}

std::size_t plan_bytes(const Problem& p) { return plan_layout(p, nullptr, nullptr); }

std::size_t forward_workspace_bytes(const Problem& p, bool training) {
  check_problem(p);
  return forward_memory(p, training, nullptr).bytes;
}

std::size_t backward_workspace_bytes(const Problem& p) {
  check_problem(p);
  return backward_memory(p, nullptr).bytes;
}

void forward(const Problem& p, const Forward& f, Stream stream) {
  check_problem(p);
  const Path path = choose_path(p);
  if (p.tokens == 0) return;
  const bool training = f.saved_gate_up != nullptr;
  require(training == (f.saved_plan != nullptr), "saved_gate_up and saved_plan come together");
  const ForwardMemory m = forward_memory(p, training, f.workspace);
  require(f.workspace && f.workspace_bytes >= m.bytes, "the forward workspace has {} bytes, needs {}", f.workspace_bytes,
          m.bytes);
  require(f.routing.scores || !f.balance_loss, "a balance loss needs routing.scores");
  const int parts = column_parts(p, training);
  log_step(training ? "forward (training)" : "forward", p, path, training, parts);
  const MoeConfig& c = p.config;
  const bool mma = path != Path::kPlain;

  Plan plan{};
  plan_layout(p, training ? static_cast<char*>(f.saved_plan) : m.plan, &plan);
  if (path == Path::kHopper && !training && hopper::can_route_few(p)) {
    hopper::route_few(p, in(f.x), f.weights, f.routing, token_tile(p, training), plan, stream);
  } else {
    gate(p, mma && c.hidden_size % 8 == 0, f.x, f.weights, f.routing, m.counts, stream);
    make_plan(p, f.routing, m.counts, token_tile(p, training), plan, stream);
  }
  if (f.balance_loss) balance(p, f.routing, m.balance, f.balance_loss, stream);

  const hopper::Sizes sizes = sizes_of(p, training);
  const portable::Step step{p, plan, mma, stream};
  if (path == Path::kHopper) {
    const bool sorted = gathers_first(p, training);
    if (sorted) gather_rows(p, plan, f.x, m.rows, stream);
    hopper::gate_up(sizes, plan, in(f.x), sorted ? in(m.rows) : nullptr, in(f.weights.gate_up), out(m.h),
                    out(f.saved_gate_up), stream);
  } else {
    portable::gate_up(step, f.x, f.weights.gate_up, m.h, f.saved_gate_up);
  }
  const int columns = sizes.width / (path == Path::kHopper ? parts : 1);
  // On Hopper the shared experts' outputs are already added up.
  const int shared_rows = path == Path::kHopper ? std::min(sizes.shared, 1) : sizes.shared;
  for (int first = 0; first < sizes.width; first += columns) {
    if (path == Path::kHopper)
      hopper::down(sizes, plan, in(m.h), in(f.weights.down), out(m.rows), first, columns, stream);
    else
      portable::down(step, m.h, f.weights.down, m.rows);
    combine(p, plan, {m.rows, first, columns, shared_rows, f.routing.weights, nullptr, f.y}, stream);
  }
}

void backward(const Problem& p, const Backward& b, Stream stream) {
  check_problem(p);
  const Path path = choose_path(p);
  const MoeConfig& c = p.config;
  const std::size_t grad_element = size_of(p.grad_dtype);
  const auto d = static_cast<std::size_t>(c.hidden_size);
  if (p.tokens == 0) {
    if (b.accumulate) return;
    const auto expert = static_cast<std::size_t>(c.all_experts() * c.expert_size) * d * grad_element;
    check(cudaMemsetAsync(b.dgate, 0, static_cast<std::size_t>(c.routed_experts) * d * grad_element, stream), "memset");
    check(cudaMemsetAsync(b.dgate_up, 0, 2 * expert, stream), "memset");
    check(cudaMemsetAsync(b.ddown, 0, expert, stream), "memset");
    return;
  }
  require(p.grad_dtype == DType::kF32 || p.grad_dtype == p.dtype, "grad_dtype is {}, expected f32 or {}",
          dsmoe::to_string(p.grad_dtype), dsmoe::to_string(p.dtype));
  require(b.saved_gate_up && b.saved_plan && b.routing.scores,
          "backward needs saved_gate_up, saved_plan and routing.scores");
  const BackwardMemory m = backward_memory(p, b.workspace);
  require(b.workspace && b.workspace_bytes >= m.bytes, "the backward workspace has {} bytes, needs {}", b.workspace_bytes,
          m.bytes);
  const int parts = path == Path::kHopper ? column_parts(p, true) : 1;
  log_step("backward", p, path, true, parts);
  Plan plan{};
  plan_layout(p, static_cast<char*>(const_cast<void*>(b.saved_plan)), &plan);
  const bool mma = path != Path::kPlain, f32 = p.grad_dtype == DType::kF32;
  const hopper::Sizes sizes = sizes_of(p, true);
  const portable::Step step{p, plan, mma, stream};
  const bool on_hopper = path == Path::kHopper;

  int dot_parts = 0;
  if (on_hopper) {
    dot_parts = hopper::hidden_backward_parts(sizes);
    gather_rows(p, plan, b.dy, m.sorted, stream);
    hopper::hidden_backward(sizes, plan, in(b.dy), in(m.sorted), in(b.weights.down), out(b.saved_gate_up), out(m.rows),
                            m.weight_grad, stream);
    hopper::weight_backward(
        sizes, plan, {in(m.rows), in(b.dy), in(m.sorted), sizes.expert_width, true, b.ddown, f32, b.accumulate}, stream);
    gather_rows(p, plan, b.x, m.sorted, stream);
    hopper::weight_backward(
        sizes, plan,
        {in(b.saved_gate_up), in(b.x), in(m.sorted), 2 * sizes.expert_width, false, b.dgate_up, f32, b.accumulate}, stream);
  } else {
    dot_parts = portable::hidden_backward_parts(p);
    portable::hidden_backward(step, b.dy, b.weights.down, b.saved_gate_up, m.rows, m.weight_grad);
    portable::weight_backward(step, m.rows, sizes.expert_width, b.dy, true, b.ddown, b.accumulate);
    portable::weight_backward(step, b.saved_gate_up, 2 * sizes.expert_width, b.x, false, b.dgate_up, b.accumulate);
  }

  const bool balanced = has_balance_loss(c) && b.balance_scale != 0.0f;
  if (balanced) balance(p, b.routing, m.balance, nullptr, stream);
  const int experts = static_cast<int>(c.routed_experts), split = split_experts(c.routed_experts);
  auto* dlogits = reinterpret_cast<float*>(m.dlogits);
  gate_scores_backward(p, plan, b.routing, m.weight_grad, dot_parts, balanced ? m.balance : nullptr, b.balance_scale,
                       {on_hopper ? nullptr : dlogits, on_hopper ? m.dlogits : nullptr}, stream);
  if (on_hopper) {
    hopper::gate_input_backward(sizes, experts, split, in(m.dlogits), in(b.weights.gate), out(m.sorted), stream);
    hopper::gate_weight_backward(sizes, split, gate_slice(p), in(m.dlogits), in(b.x), m.gate_partial, stream);
  } else {
    gate_input_backward(p, mma, dlogits, b.weights.gate, m.sorted, stream);
    gate_weight_backward(p, mma, dlogits, b.x, m.gate_partial, stream);
  }
  // The Hopper product leaves the halves of dlogits apart.
  add_slices(p, m.gate_partial, on_hopper ? 2 : 1, on_hopper ? split : experts, b.dgate, b.accumulate, stream);

  const int columns = sizes.width / parts;
  const int shared_rows = on_hopper ? std::min(sizes.shared, 1) : sizes.shared;
  for (int first = 0; first < sizes.width; first += columns) {
    if (on_hopper)
      hopper::input_backward(sizes, plan, in(b.saved_gate_up), in(b.weights.gate_up), out(m.rows), first, columns, stream);
    else
      portable::input_backward(step, b.saved_gate_up, b.weights.gate_up, m.rows);
    combine(p, plan, {m.rows, first, columns, shared_rows, nullptr, m.sorted, b.dx}, stream);
  }
}

}  // namespace dsmoe::cuda
