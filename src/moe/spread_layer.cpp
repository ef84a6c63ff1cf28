#include "moe/spread_layer.h"

#include <algorithm>
#include <numeric>

#include "core/fail.h"
#include "dsmoe/routing_overrides.h"
#include "moe/batch_load.h"
#include "moe/dispatch.h"
#include "ops/elementwise.h"
#include "ops/expert_rows.h"
#include "ops/shared_gate.h"

namespace dsmoe {

using parallel::Bytes;
using parallel::bytes_of;
using parallel::Comm;
using parallel::ConstBytes;

struct SpreadMoeLayer::Saved {
  Tensor x;  // [T, D]
  Index sequence_length = 0;
  ops::Chosen chosen;
  ops::Plan plan;  // of all experts, over the tokens here
  std::optional<ops::BatchLoad> whole;
  Outgoing out;
  std::vector<std::int64_t> tokens_from, rows_from;  // of each rank of the group
  ops::Plan shared;
  ops::ExpertActivations shared_kept;
  Tensor came;  // [tokens that came, D]
  Incoming in;
  ops::ExpertActivations kept;
  bool used = false;
};

namespace {

// Every token goes to each of `shared` experts with weight 1.
ops::Plan plan_of_shared(Index tokens, Index shared) {
  ops::Plan plan;
  plan.tokens = tokens, plan.shared = shared;
  plan.offset = Tensor(DType::kI32, {shared + 1});
  plan.token = Tensor(DType::kI32, {shared * tokens});
  plan.weight = Tensor(DType::kF32, {shared * tokens});
  for (Index s = 0; s <= shared; ++s) plan.offset.data<std::int32_t>()[s] = static_cast<std::int32_t>(s * tokens);
  for (Index i = 0; i < shared * tokens; ++i) {
    plan.token.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % tokens);
    plan.weight.data<float>()[i] = 1;
  }
  return plan;
}

// Parts of a matrix' rows, counts[r] of them for rank r.
template <class Part>
std::vector<Part> parts_of(Part all, const std::vector<std::int64_t>& counts, std::size_t row_bytes) {
  std::vector<Part> parts;
  std::size_t at = 0;
  for (const std::int64_t n : counts) {
    parts.push_back(all.subspan(at, static_cast<std::size_t>(n) * row_bytes));
    at += parts.back().size();
  }
  return parts;
}

ConstBytes read(const Tensor& t) { return {static_cast<const std::byte*>(t.raw()), t.bytes()}; }
Bytes written(Tensor& t) { return {static_cast<std::byte*>(t.raw_mutable()), t.bytes()}; }

std::unique_ptr<Comm::Pending> send_rows(Comm& comm, const Tensor& from, const std::vector<std::int64_t>& to_counts,
                                         Tensor& to, const std::vector<std::int64_t>& from_counts) {
  const std::size_t bytes = row_bytes(from.dtype(), from.dim(1));
  return comm.start_exchange(parts_of(read(from), to_counts, bytes), parts_of(written(to), from_counts, bytes));
}

// A list without experts has no form of its own.
Experts part(const Experts& all, Index first, Index last) { return first == last ? Experts() : all.range(first, last); }

Index sum(const std::vector<std::int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), Index{0}); }

}  // namespace

SpreadMoeLayer::SpreadMoeLayer(MoeConfig config, MoeWeights weights, const parallel::Mesh& mesh)
    : config_(config), gate_(weights.gate), gate_bias_(weights.gate_bias), shared_gate_(weights.shared_gate), mesh_(mesh) {
  config_.validate();
  const Index all = config_.routed_experts;
  const Comm::Range here = mesh.experts_here(all);
  require(mesh.experts->size() <= all, "expert-parallel is {}, but a layer has only {} routed experts; use at most as many",
          mesh.experts->size(), all);
  require(weights.device() == Device::kCpu,
          "experts that are spread over ranks run on the CPU alone so far; use device cpu");
  const Experts& experts = weights.experts;
  const Index shared = experts.mixed() ? std::min<Index>(config_.shared_experts, 1) : config_.shared_experts;  // entries
  const bool whole = experts.count() == shared + all;
  experts.check(config_.shared_experts, whole ? all : here.count(), config_.expert_size, config_.hidden_size);
  shared_ = part(experts, 0, shared);
  experts_ = whole ? experts.range(shared + here.first, shared + here.last) : experts.range(shared, experts.count());
}

Tensor SpreadMoeLayer::shared_sums(Context& ctx, const Experts& shared, const Tensor& x, Saved* saved) const {
  if (!shared) return ctx.zeros(DType::kF32, x.shape());
  ops::Plan plan = plan_of_shared(x.dim(0), shared.count());
  if (config_.shared_gate) ops::weigh_shared(ctx, x, shared_gate_, plan);
  const Tensor h = ops::experts_gate_up(ctx, shared, plan, x, saved ? &saved->shared_kept : nullptr);
  if (saved) saved->shared = plan;
  return ops::expert_sums(ctx, shared, plan, h);
}

SpreadMoeLayer::Forward SpreadMoeLayer::forward(Context& ctx, const Tensor& x, const MoeForwardOptions& options) const {
  require(!options.training || (options.overrides == nullptr && !experts_.mixed() && !mesh_.same_tokens),
          "experts of this layer cannot be trained: routing overrides, quantized weights, or tokens that all ranks have");
  const MoeConfig config = options.overrides ? options.overrides->apply(config_) : config_;
  const bool dropped = config.shared_experts == 0;  // the shared experts, by an override, or there are none
  const Experts shared = dropped ? Experts() : shared_;

  auto saved = std::make_shared<Saved>();
  saved->x = x;
  saved->sequence_length = options.sequence_length > 0 ? options.sequence_length : std::max<Index>(x.dim(0), 1);
  ops::Gated gated = ops::gate(ctx, config, x, gate_, gate_bias_, shared.count(), options.training, options.overrides);
  saved->chosen = std::move(gated.chosen), saved->plan = std::move(gated.plan);
  const Tensor sums =
      mesh_.same_tokens ? rows_of_all(ctx, x, shared, *saved) : travel(ctx, x, shared, *saved, options.training);
  Forward forward;
  forward.out.y = ops::converted(ctx, sums, x.dtype());
  const ops::Chosen& chosen = saved->chosen;
  forward.out.routing = {chosen.experts, chosen.weights, chosen.scores};
  if (options.training) {
    saved->whole = batch_load(config_, chosen, saved->sequence_length, options.others);
    forward.out.losses =
        ops::balance_losses(ctx, config_, chosen, saved->sequence_length, saved->whole ? &*saved->whole : nullptr);
    forward.out.offset = saved->plan.offset;
    forward.saved = std::move(saved);
  }
  return forward;
}

// Tokens go to their experts and rows come back, while the shared experts are computed here.
Tensor SpreadMoeLayer::travel(Context& ctx, const Tensor& x, const Experts& shared, Saved& s, bool training) const {
  Comm& comm = *mesh_.experts;
  s.out = outgoing(s.chosen, mesh_, config_.routed_experts);
  s.tokens_from = comm.all_to_all(s.out.token_count);
  s.rows_from = comm.all_to_all(s.out.row_count);
  std::vector<TravellingRow> rows(static_cast<std::size_t>(sum(s.rows_from)));
  s.came = ctx.empty(x.dtype(), {sum(s.tokens_from), x.dim(1)});
  const Tensor going = ops::gathered_rows(ctx, x, s.out.tokens);
  const auto rows_pending = comm.start_exchange(
      parts_of(bytes_of(std::span<const TravellingRow>(s.out.rows)), s.out.row_count, sizeof(TravellingRow)),
      parts_of(bytes_of(std::span(rows)), s.rows_from, sizeof(TravellingRow)));
  const auto tokens_pending = send_rows(comm, going, s.out.token_count, s.came, s.tokens_from);
  Tensor sums = shared_sums(ctx, shared, x, training ? &s : nullptr);
  rows_pending->wait();
  tokens_pending->wait();

  const Experts& experts = experts_;
  s.in = incoming(rows, s.tokens_from, s.rows_from, experts.count());
  const Tensor h = ops::experts_gate_up(ctx, experts, s.in.plan, s.came, training ? &s.kept : nullptr);
  const bool partial = mesh_.partial_sums;
  const Tensor mine = ops::expert_sums(ctx, experts, partial ? s.in.plan : ops::rows_apart(s.in.plan, s.in.place), h);
  const std::vector<std::int64_t>&back = partial ? s.tokens_from : s.rows_from,
        &home = partial ? s.out.token_count : s.out.row_count;
  Tensor returned = ctx.empty(DType::kF32, {sum(home), x.dim(1)});
  send_rows(comm, mine, back, returned, home)->wait();
  ops::add_rows(ctx, partial ? s.out.sum_place : s.out.place, partial ? Tensor() : s.out.weight, returned, sums);
  return sums;
}

// All ranks have all tokens: each computes the rows of its experts, and all get all rows. The rows of a plan are sorted by
// expert, so those of one rank after another are in its order.
Tensor SpreadMoeLayer::rows_of_all(Context& ctx, const Tensor& x, const Experts& shared, const Saved& s) const {
  const ops::Plan& plan = s.plan;
  const Index width = x.dim(1), first_row = shared.count() * plan.tokens;
  const std::span<const std::int32_t> offset = plan.offset.span<std::int32_t>();
  const auto row_of = [&](Index expert) { return Index{offset[static_cast<std::size_t>(shared.count() + expert)]}; };
  Tensor all = ctx.empty(DType::kF32, {plan.rows() - first_row, width});
  const parallel::Comm::Range here = mesh_.experts_here(config_.routed_experts);
  ops::Plan mine;
  mine.tokens = plan.tokens, mine.routed = here.count();
  mine.offset = Tensor(DType::kI32, {here.count() + 1});
  const Index first = row_of(here.first), last = row_of(here.last);
  for (Index e = 0; e <= here.count(); ++e)
    mine.offset.data<std::int32_t>()[e] = static_cast<std::int32_t>(row_of(here.first + e) - first);
  mine.token = plan.token.rows(first, last), mine.weight = plan.weight.rows(first, last);
  const Experts& experts = experts_;
  const Tensor h = ops::experts_gate_up(ctx, experts, mine, x, nullptr);
  std::vector<std::int32_t> place(static_cast<std::size_t>(last - first));
  std::iota(place.begin(), place.end(), 0);
  const Tensor rows = ops::expert_sums(ctx, experts, ops::rows_apart(mine, place), h);

  std::vector<std::int64_t> counts;
  for (int r = 0; r < mesh_.experts->size(); ++r) {
    const parallel::Comm::Range range = mesh_.experts_of(config_.routed_experts, r);
    counts.push_back(row_of(range.last) - row_of(range.first));
  }
  const std::vector<Bytes> from = parts_of(written(all), counts, row_bytes(DType::kF32, width));
  const std::vector<ConstBytes> to(counts.size(), read(rows));
  const auto pending = mesh_.experts->start_exchange(to, from);
  Tensor sums = shared_sums(ctx, shared, x, nullptr);
  pending->wait();
  // A token's rows in the order of the experts: that of their places.
  Tensor place_of = plan.slot_row.clone(), weight = plan.slot_weight.clone();
  const Index k = place_of.dim(1);
  for (Index t = 0; t < plan.tokens; ++t) {
    std::int32_t* const row = place_of.data<std::int32_t>() + t * k;
    std::sort(row, row + k);
    for (Index j = 0; j < k; ++j) {
      weight.data<float>()[t * k + j] = plan.weight.data<float>()[row[j]];
      row[j] -= static_cast<std::int32_t>(first_row);
    }
  }
  ops::add_rows(ctx, place_of, weight, all, sums);
  return sums;
}

Tensor SpreadMoeLayer::backward(Context& ctx, const Tensor& dy, Saved& s, MoeGradients& grads,
                                const MoeBackwardOptions& options) const {
  invariant(options.aux_scale_factor.numel() == 0, "a layer of many processes takes its aux_scale as a number");
  require(!s.used, "this forward pass already had its backward pass, which uses up what forward saved");
  s.used = true;
  Comm& comm = *mesh_.experts;
  const Experts &shared = shared_, &experts = experts_;
  Experts shared_grads = part(grads.experts, 0, shared.count()),
          expert_grads = grads.experts.range(shared.count(), grads.experts.count());

  Tensor dy_came = ctx.empty(dy.dtype(), s.came.shape());
  const Tensor going = ops::gathered_rows(ctx, dy, s.out.tokens);
  const auto pending = send_rows(comm, going, s.out.token_count, dy_came, s.tokens_from);
  ops::ExpertRowGrads shared_d;
  if (shared) {
    shared_d = ops::experts_down_backward(ctx, shared, s.shared, dy, std::move(s.shared_kept));
    ops::experts_weight_backward(ctx, s.shared, s.x, dy, shared_d, shared_grads, options.accumulate);
  }
  pending->wait();
  ops::ExpertRowGrads d = ops::experts_down_backward(ctx, experts, s.in.plan, dy_came, std::move(s.kept));
  ops::experts_weight_backward(ctx, s.in.plan, s.came, dy_came, d, expert_grads, options.accumulate);

  const bool partial = mesh_.partial_sums;
  Tensor mine;
  if (partial) {
    mine = ctx.zeros(DType::kF32, s.came.shape());
    ops::add_expert_grads(ctx, experts, s.in.plan, d, mine);
  } else {
    mine = ops::expert_row_grads(ctx, experts, ops::rows_apart(s.in.plan, s.in.place), d);
  }
  Tensor weight_grads(DType::kF32, {d.weight.dim(0), 1});  // in the order in which the rows came
  for (std::size_t r = 0; r < s.in.place.size(); ++r) weight_grads.data<float>()[s.in.place[r]] = d.weight.data<float>()[r];
  const std::vector<std::int64_t>&back = partial ? s.tokens_from : s.rows_from,
        &home = partial ? s.out.token_count : s.out.row_count;
  Tensor returned = ctx.empty(DType::kF32, {sum(home), dy.dim(1)});
  Tensor returned_weights(DType::kF32, {sum(s.out.row_count), 1});
  const auto rows_back = send_rows(comm, mine, back, returned, home);
  send_rows(comm, weight_grads, s.rows_from, returned_weights, s.out.row_count)->wait();

  Tensor row_weights = Tensor::zeros(DType::kF32, {s.plan.rows(), 1});
  const Index k = config_.experts_per_token;
  for (Index i = 0; i < s.out.place.numel(); ++i) {
    const Index slot = i / k * k + s.out.slot.data<std::int32_t>()[i];
    row_weights.data<float>()[s.plan.slot_row.data<std::int32_t>()[slot]] =
        returned_weights.data<float>()[s.out.place.data<std::int32_t>()[i]];
  }
  Tensor dx = ops::gate_backward(ctx, config_, s.x, gate_,
                                 {s.chosen, s.plan, row_weights, s.sequence_length, options.aux_scale, options.accumulate,
                                  s.whole ? &*s.whole : nullptr},
                                 grads.gate);
  if (config_.shared_gate)
    ops::weigh_shared_backward(ctx, s.x, shared_gate_, s.shared, {shared_d.weight, options.accumulate}, grads.shared_gate,
                               dx);
  if (shared) ops::add_expert_grads(ctx, shared, s.shared, shared_d, dx);
  rows_back->wait();
  ops::add_rows(ctx, partial ? s.out.sum_place : s.out.place, {}, returned, dx);
  return ops::converted(ctx, dx, dy.dtype());
}

}  // namespace dsmoe
