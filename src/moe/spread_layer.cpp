#include "moe/spread_layer.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

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
  Tensor offset;                   // of all experts, over the tokens here
  std::vector<std::int64_t> load;  // of all experts, by the tokens here; empty: nobody asks
  std::optional<ops::BatchLoad> whole;
  Outgoing out;
  Tensor going;                                      // out.tokens
  Tensor place;                                      // out.place
  TokenRows home;                                    // of the rows that come back, or of one sum per rank
  std::vector<std::int64_t> tokens_from, rows_from;  // of each rank of the group
  ops::Plan shared;
  ops::ExpertActivations shared_kept;
  Tensor came;  // [tokens that came, D]
  Incoming in;
  Tensor token;        // in.token
  TokenRows per_rank;  // for one sum per rank: of the rows here
  ops::Plan plan;      // of the rows that came
  ops::ExpertActivations kept;
  bool used = false;
};

namespace {

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

std::unique_ptr<Comm::Pending> send_rows(Context& ctx, Comm& comm, const Tensor& from,
                                         const std::vector<std::int64_t>& to_counts, Tensor& to,
                                         const std::vector<std::int64_t>& from_counts) {
  const std::size_t bytes = row_bytes(from.dtype(), from.dim(1));
  return comm.start_exchange(ctx, parts_of(read(from), to_counts, bytes), parts_of(written(to), from_counts, bytes));
}

// A list on this machine, where the work runs. It is kept as long as the tensor.
Tensor placed(Context& ctx, const std::vector<std::int32_t>& list) {
  return ctx.place(Tensor::view_of(std::span<const std::int32_t>(list)));
}

// In the order in which the backend adds up (docs/design/determinism.md): a GPU best first, as `place` has them; the CPU by
// expert, which is the order of the places.
TokenRows in_order(Context& ctx, const Tensor& place, const Tensor& weight) {
  if (ctx.device() == Device::kCuda) return {ctx.place(place), ctx.place(weight)};
  TokenRows s{Tensor(DType::kI32, place.shape()), Tensor(DType::kF32, place.shape())};
  const Index k = place.dim(1);
  std::vector<std::pair<std::int32_t, float>> token(static_cast<std::size_t>(k));
  for (Index first = 0; first < place.numel(); first += k) {
    for (std::size_t j = 0; j < token.size(); ++j)
      token[j] = {place.data<std::int32_t>()[first + static_cast<Index>(j)],
                  weight.data<float>()[first + static_cast<Index>(j)]};
    std::ranges::sort(token);
    for (std::size_t j = 0; j < token.size(); ++j)
      std::tie(s.row.data<std::int32_t>()[first + static_cast<Index>(j)],
               s.weight.data<float>()[first + static_cast<Index>(j)]) = token[j];
  }
  return s;
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
  const Experts& experts = weights.experts;
  const Index shared = experts.mixed() ? std::min<Index>(config_.shared_experts, 1) : config_.shared_experts;  // entries
  const bool whole = experts.count() == shared + all;
  experts.check(config_.shared_experts, whole ? all : here.count(), config_.expert_size, config_.hidden_size);
  shared_ = part(experts, 0, shared);
  experts_ = whole ? experts.range(shared + here.first, shared + here.last) : experts.range(shared, experts.count());
}

Tensor SpreadMoeLayer::shared_sums(Context& ctx, const Experts& shared, const Tensor& x, Saved* saved) const {
  if (!shared) return ctx.zeros(DType::kF32, x.shape());
  ops::Plan plan = ops::plan_of_shared(ctx, x.dim(0), shared.count());
  if (config_.shared_gate) ops::weigh_shared(ctx, x, shared_gate_, plan);
  const Tensor h = ops::experts_gate_up(ctx, shared, plan, x, saved ? &saved->shared_kept : nullptr);
  if (saved) saved->shared = plan;
  return ops::shared_sums(ctx, shared, plan, h);
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
  saved->chosen = std::move(gated.chosen), saved->offset = gated.plan.offset;
  const bool on_gpu = ctx.device() == Device::kCuda;
  require(!on_gpu || options.overrides == nullptr, "routing overrides of a spread model are for the CPU");
  const Tensor sums = !mesh_.same_tokens ? travel(ctx, x, shared, *saved, options)
                      : on_gpu           ? rows_of_chosen(ctx, x, shared, saved->chosen)
                                         : rows_of_all(ctx, x, shared, gated.plan);
  Forward forward;
  forward.out.y = ops::converted(ctx, sums, x.dtype());
  const ops::Chosen& chosen = saved->chosen;
  forward.out.routing = {chosen.experts, chosen.weights, chosen.scores};
  if (options.training) {
    saved->whole = batch_load(config_, saved->load, x.dim(0), saved->sequence_length, options.others);
    forward.out.losses =
        ops::balance_losses(ctx, config_, chosen, saved->sequence_length, saved->whole ? &*saved->whole : nullptr);
    forward.out.offset = saved->offset;
    forward.saved = std::move(saved);
  }
  return forward;
}

// Tokens go to their experts and rows come back, while the shared experts are computed here. Which tokens go where is
// worked out on this machine, and so travels between the machines.
Tensor SpreadMoeLayer::travel(Context& ctx, const Tensor& x, const Experts& shared, Saved& s,
                              const MoeForwardOptions& options) const {
  Comm& comm = *mesh_.experts;
  const bool partial = mesh_.partial_sums, training = options.training;
  const ops::Chosen here{{}, ctx.fetch(s.chosen.experts), ctx.fetch(s.chosen.weights), {}};
  s.out = outgoing(here, mesh_, config_.routed_experts);
  if (training && needs_load_of_all(config_, options.others)) s.load = load_here(config_, here.experts);
  s.going = placed(ctx, s.out.tokens), s.place = ctx.place(s.out.place);
  s.home = partial ? TokenRows{ctx.place(s.out.sum_place), {}} : in_order(ctx, s.out.place, here.weights);
  s.tokens_from = comm.all_to_all(s.out.token_count);
  s.rows_from = comm.all_to_all(s.out.row_count);
  std::vector<TravellingRow> rows(static_cast<std::size_t>(sum(s.rows_from)));
  s.came = ctx.empty(x.dtype(), {sum(s.tokens_from), x.dim(1)});
  const Tensor going = ops::gathered_rows(ctx, x, s.going);
  const auto rows_pending = comm.start_exchange(
      parts_of(bytes_of(std::span<const TravellingRow>(s.out.rows)), s.out.row_count, sizeof(TravellingRow)),
      parts_of(bytes_of(std::span(rows)), s.rows_from, sizeof(TravellingRow)));
  const auto tokens_pending = send_rows(ctx, comm, going, s.out.token_count, s.came, s.tokens_from);
  Tensor sums = shared_sums(ctx, shared, x, training ? &s : nullptr);
  rows_pending->wait();
  s.in = incoming(rows, s.tokens_from, s.rows_from, experts_.count());
  s.token = placed(ctx, s.in.token);
  s.plan = ops::plan_of_rows(ctx, config_, s.in.expert, s.in.weight, experts_.count(), x.dtype());
  if (partial) {
    const auto [row, weight] = rows_of_tokens(s.in, s.came.dim(0));
    s.per_rank = {ctx.place(row), ctx.place(weight)};
  }
  tokens_pending->wait();

  const Tensor h =
      ops::experts_gate_up(ctx, experts_, s.plan, ops::gathered_rows(ctx, s.came, s.token), training ? &s.kept : nullptr);
  Tensor mine = ops::expert_rows(ctx, experts_, s.plan, h);
  if (partial) mine = sum_per_token(ctx, s, s.per_rank.weight, mine);
  const auto& [back, home] = counts_back(s);
  Tensor returned = ctx.empty(mine.dtype(), {sum(home), x.dim(1)});
  send_rows(ctx, comm, mine, back, returned, home)->wait();
  ops::add_rows(ctx, s.home.row, s.home.weight, returned, sums);
  return sums;
}

// What goes back to each rank, and what comes back from it.
std::pair<const std::vector<std::int64_t>&, const std::vector<std::int64_t>&> SpreadMoeLayer::counts_back(
    const Saved& s) const {
  if (mesh_.partial_sums) return {s.tokens_from, s.out.token_count};
  return {s.rows_from, s.out.row_count};
}

Tensor SpreadMoeLayer::sum_per_token(Context& ctx, const Saved& s, const Tensor& weight, const Tensor& rows) const {
  Tensor sums = ctx.zeros(DType::kF32, s.came.shape());
  ops::add_rows(ctx, s.per_rank.row, weight, rows, sums);
  return sums;
}

// All ranks have all tokens: each computes the rows of its experts, and all get all rows. The rows of a plan are sorted by
// expert, so those of one rank after another are in its order.
Tensor SpreadMoeLayer::rows_of_all(Context& ctx, const Tensor& x, const Experts& shared, const ops::Plan& plan) const {
  const Index width = x.dim(1), first_row = shared.count() * plan.tokens;
  const std::span<const std::int32_t> offset = plan.offset.span<std::int32_t>();
  const auto row_of = [&](Index expert) { return Index{offset[static_cast<std::size_t>(shared.count() + expert)]}; };
  const parallel::Comm::Range here = mesh_.experts_here(config_.routed_experts);
  const Index first = row_of(here.first), last = row_of(here.last);
  std::vector<std::int32_t> expert(static_cast<std::size_t>(last - first));
  for (Index e = here.first; e < here.last; ++e)
    std::fill(expert.begin() + (row_of(e) - first), expert.begin() + (row_of(e + 1) - first),
              static_cast<std::int32_t>(e - here.first));
  const ops::Plan mine =
      ops::plan_of_rows(ctx, config_, expert, plan.weight.rows(first, last).span<float>(), experts_.count(), x.dtype());
  const Tensor h = ops::experts_gate_up(ctx, experts_, mine, ops::gathered_rows(ctx, x, plan.token.rows(first, last)),
                                        /*keep=*/nullptr);
  const Tensor rows = ops::expert_rows(ctx, experts_, mine, h);

  std::vector<std::int64_t> counts;
  for (int r = 0; r < mesh_.experts->size(); ++r) {
    const parallel::Comm::Range range = mesh_.experts_of(config_.routed_experts, r);
    counts.push_back(row_of(range.last) - row_of(range.first));
  }
  Tensor all = ctx.empty(rows.dtype(), {plan.rows() - first_row, width});
  const std::vector<Bytes> from = parts_of(written(all), counts, row_bytes(all.dtype(), width));
  const std::vector<ConstBytes> to(counts.size(), read(rows));
  const auto pending = mesh_.experts->start_exchange(ctx, to, from);
  Tensor sums = shared_sums(ctx, shared, x, nullptr);
  pending->wait();
  Tensor place = plan.slot_row.clone();
  for (std::int32_t& row : place.span<std::int32_t>()) row -= static_cast<std::int32_t>(first_row);
  const TokenRows home = in_order(ctx, place, plan.slot_weight);
  ops::add_rows(ctx, home.row, home.weight, all, sums);
  return sums;
}

// The same on a GPU, whose plan is not here: which rows there are follows from the choices, as for tokens that travel, and
// those of one rank after another are all rows.
Tensor SpreadMoeLayer::rows_of_chosen(Context& ctx, const Tensor& x, const Experts& shared,
                                      const ops::Chosen& chosen) const {
  const ops::Chosen here{{}, ctx.fetch(chosen.experts), ctx.fetch(chosen.weights), {}};
  const Outgoing all = outgoing(here, mesh_, config_.routed_experts);
  const auto me = static_cast<std::ptrdiff_t>(mesh_.experts->rank());
  const Index first_token = std::accumulate(all.token_count.begin(), all.token_count.begin() + me, Index{0}),
              first_row = std::accumulate(all.row_count.begin(), all.row_count.begin() + me, Index{0});
  std::vector<std::int32_t> token, expert;
  std::vector<float> weight;
  for (Index i = first_row; i < first_row + all.row_count[static_cast<std::size_t>(me)]; ++i) {
    const TravellingRow& row = all.rows[static_cast<std::size_t>(i)];
    token.push_back(all.tokens[static_cast<std::size_t>(first_token + row.token)]);
    expert.push_back(row.expert);
    weight.push_back(row.weight);
  }
  const ops::Plan mine = ops::plan_of_rows(ctx, config_, expert, weight, experts_.count(), x.dtype());
  const Tensor h = ops::experts_gate_up(ctx, experts_, mine, ops::gathered_rows(ctx, x, placed(ctx, token)),
                                        /*keep=*/nullptr);
  const Tensor rows = ops::expert_rows(ctx, experts_, mine, h);
  Tensor everywhere = ctx.empty(rows.dtype(), {sum(all.row_count), x.dim(1)});
  const std::vector<Bytes> from = parts_of(written(everywhere), all.row_count, row_bytes(rows.dtype(), x.dim(1)));
  const std::vector<ConstBytes> to(from.size(), read(rows));
  const auto pending = mesh_.experts->start_exchange(ctx, to, from);
  Tensor sums = shared_sums(ctx, shared, x, nullptr);
  pending->wait();
  const TokenRows home = in_order(ctx, all.place, here.weights);
  ops::add_rows(ctx, home.row, home.weight, everywhere, sums);
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
  const Tensor going = ops::gathered_rows(ctx, dy, s.going);
  const auto pending = send_rows(ctx, comm, going, s.out.token_count, dy_came, s.tokens_from);
  ops::ExpertRowGrads shared_d;
  if (shared) {
    shared_d = ops::experts_down_backward(ctx, shared, s.shared, dy, std::move(s.shared_kept));
    ops::experts_weight_backward(ctx, s.shared, s.x, dy, shared_d, shared_grads, options.accumulate);
  }
  pending->wait();
  const Tensor dy_rows = ops::gathered_rows(ctx, dy_came, s.token);
  ops::ExpertRowGrads d = ops::experts_down_backward(ctx, experts, s.plan, dy_rows, std::move(s.kept));
  ops::experts_weight_backward(ctx, s.plan, ops::gathered_rows(ctx, s.came, s.token), dy_rows, d, expert_grads,
                               options.accumulate);

  Tensor mine = ops::expert_row_grads(ctx, experts, s.plan, d);
  if (mesh_.partial_sums) mine = sum_per_token(ctx, s, {}, mine);
  const Tensor weight_grads = ops::gathered_rows(ctx, d.weight, s.plan.slot_row);  // in the order in which the rows came
  const auto& [back, home] = counts_back(s);
  Tensor returned = ctx.empty(mine.dtype(), {sum(home), dy.dim(1)});
  Tensor returned_weights = ctx.empty(DType::kF32, {sum(s.out.row_count), d.weight.dim(1)});
  const auto rows_back = send_rows(ctx, comm, mine, back, returned, home);
  send_rows(ctx, comm, weight_grads, s.rows_from, returned_weights, s.out.row_count)->wait();

  ops::Plan returned_rows;  // what the gate looks at
  returned_rows.slot_row = s.place, returned_rows.token = s.place.reshape({s.place.numel()});
  Tensor gate_dx = ops::gate_backward(ctx, config_, s.x, gate_,
                                      {s.chosen, returned_rows, returned_weights, s.sequence_length, options.aux_scale,
                                       options.accumulate, s.whole ? &*s.whole : nullptr},
                                      grads.gate);
  if (config_.shared_gate)
    ops::weigh_shared_backward(ctx, s.x, shared_gate_, s.shared, {shared_d.weight, options.accumulate}, grads.shared_gate,
                               gate_dx);
  Tensor dx = ops::converted(ctx, gate_dx, DType::kF32);
  if (shared) ops::add_shared_grads(ctx, shared, s.shared, shared_d, dx);
  rows_back->wait();
  ops::add_rows(ctx, s.home.row, {}, returned, dx);
  return ops::converted(ctx, dx, dy.dtype());
}

}  // namespace dsmoe
