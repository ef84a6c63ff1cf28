// Experts that are spread over ranks compute what one process computes, to the bit.
#include "moe/spread_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "support/expect_error.h"
#include "support/moe_case.h"
#include "support/thread_ranks.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using parallel::Comm;
using parallel::Mesh;
using test::moe_config;
using test::moe_weights;
using test::random_tensor;
using testing::run_ranks;

// The part of all experts that a rank has.
MoeWeights weights_here(const MoeConfig& c, const MoeWeights& all, const Mesh& mesh) {
  const Comm::Range here = mesh.experts_here(c.routed_experts);
  MoeWeights w{all.gate, all.gate_bias, {}, all.shared_gate};
  w.experts = Experts::empty(c.shared_experts + here.count(), c.expert_size, c.hidden_size, all.experts.dtype());
  const auto copy = [](const Tensor& from, Index first, Index last, Tensor& to, Index at) {
    const Tensor part = from.rows(first, last);
    Tensor target = to.rows(at, at + last - first);
    std::memcpy(target.raw_mutable(), part.raw(), part.bytes());
  };
  const Index s = c.shared_experts;
  for (const bool down : {false, true}) {
    const Tensor& from = down ? all.experts.down() : all.experts.gate_up();
    Tensor& to = down ? w.experts.down() : w.experts.gate_up();
    copy(from, 0, s, to, 0);
    copy(from, s + here.first, s + here.last, to, s);
  }
  return w;
}

struct Case {
  MoeConfig config;
  DType dtype = DType::kF32;
  int ranks = 2, group = 2;
  std::vector<Index> sequences = {2, 2};  // of each rank
  bool partial = false;
  bool all_to_first = false;  // a bias sends all tokens to the experts of rank 0
};

constexpr Index kLength = 6;

struct Whole {
  MoeWeights weights;
  Tensor x, dy;
  MoeForward out;
  Tensor dx;
  MoeGradients grads;
  BalanceLosses losses;
};

Whole by_one_process(const Case& c) {
  Index sequences = 0;
  for (const Index n : c.sequences) sequences += n;
  Context ctx(2);
  Whole w;
  w.weights = moe_weights(c.config, c.dtype, 3);
  if (c.config.selection_bias) {
    w.weights.gate_bias = Tensor::zeros(DType::kF32, {c.config.routed_experts});
    for (Index e = 0; c.all_to_first && e < c.config.routed_experts / c.group; ++e)
      w.weights.gate_bias.data<float>()[e] = 100;
  }
  w.x = random_tensor(c.dtype, {sequences * kLength, c.config.hidden_size}, 5);
  w.dy = random_tensor(c.dtype, {sequences * kLength, c.config.hidden_size}, 6);
  const MoeLayer layer(c.config, w.weights);
  w.out = layer.forward(ctx, w.x, {.training = true, .sequence_length = kLength});
  w.losses = fetch_losses(ctx, w.out);
  w.grads = MoeGradients(c.config);
  w.dx = layer.backward(ctx, w.dy, w.out, w.grads, {.aux_scale = 0.5f});
  return w;
}

std::uint64_t check(const Case& c) {
  const Whole want = by_one_process(c);
  const test::LayerLimits limits =
      test::layer_limits(c.dtype, {want.x.dim(0), c.config.hidden_size, c.config.expert_size, c.config.routed_experts});
  std::mutex mutex;
  std::vector<double> losses(4);
  std::uint64_t sent = 0;
  run_ranks(c.ranks, [&](const std::shared_ptr<Comm>& world) {
    Context ctx(1);
    Mesh mesh = parallel::make_mesh(world, c.group);
    mesh.partial_sums = c.partial;
    const SpreadMoeLayer layer(c.config, weights_here(c.config, want.weights, mesh), mesh);
    const std::uint64_t before = mesh.experts->bytes_sent();
    Index first = 0;
    for (int r = 0; r < world->rank(); ++r) first += c.sequences[static_cast<std::size_t>(r)] * kLength;
    const Index last = first + c.sequences[static_cast<std::size_t>(world->rank())] * kLength;
    SpreadMoeLayer::Forward forward =
        layer.forward(ctx, want.x.rows(first, last), {.training = true, .sequence_length = kLength, .others = world.get()});
    const Comm::Range here = mesh.experts_here(c.config.routed_experts);
    MoeGradients grads;
    grads.gate = Tensor::zeros(DType::kF32, want.grads.gate.shape());
    if (c.config.shared_gate) grads.shared_gate = Tensor::zeros(DType::kF32, want.grads.shared_gate.shape());
    grads.experts =
        Experts::zeros(c.config.shared_experts + here.count(), c.config.expert_size, c.config.hidden_size, DType::kF32);
    const Tensor dx = layer.backward(ctx, want.dy.rows(first, last), *forward.saved, grads, {.aux_scale = 0.5f});
    const std::uint64_t bytes = mesh.experts->bytes_sent() - before;
    world->all_reduce(grads.gate.span<float>());
    if (c.config.shared_gate) world->all_reduce(grads.shared_gate.span<float>());
    const auto routed = [&](Tensor& t) { return t.rows(c.config.shared_experts, t.dim(0)); };
    const auto wanted = [&](const Tensor& t) {
      return t.rows(c.config.shared_experts + here.first, c.config.shared_experts + here.last);
    };
    Tensor gate_up = routed(grads.experts.gate_up()), down = routed(grads.experts.down());
    mesh.data->all_reduce(gate_up.span<float>());
    mesh.data->all_reduce(down.span<float>());

    const std::lock_guard lock(mutex);
    sent += bytes;
    for (std::size_t i = 0; i < 4; ++i) losses[i] += forward.out.losses.data<double>()[i];
    EXPECT_TRUE(test::same_bits(forward.out.routing.experts, want.out.routing.experts.rows(first, last)));
    if (c.partial) {
      EXPECT_TRUE(test::close(forward.out.y, want.out.y.rows(first, last), limits.y));
      EXPECT_TRUE(test::close(dx, want.dx.rows(first, last), limits.dx));
    } else {
      EXPECT_TRUE(test::same_bits(forward.out.y, want.out.y.rows(first, last)));
      EXPECT_TRUE(test::same_bits(dx, want.dx.rows(first, last)));
    }
    EXPECT_TRUE(test::close(grads.gate, want.grads.gate, limits.gate));
    if (c.config.shared_gate) {
      EXPECT_TRUE(test::close(grads.shared_gate, want.grads.shared_gate, limits.gate));
    }
    if (c.group == c.ranks) {  // one rank has all rows of an expert, in the order of the tokens
      EXPECT_TRUE(test::same_bits(gate_up, wanted(want.grads.experts.gate_up())));
      EXPECT_TRUE(test::same_bits(down, wanted(want.grads.experts.down())));
    } else {
      EXPECT_TRUE(test::close(gate_up, wanted(want.grads.experts.gate_up()), limits.experts));
      EXPECT_TRUE(test::close(down, wanted(want.grads.experts.down()), limits.experts));
    }
  });
  const double all[] = {want.losses.sequence, want.losses.batch, want.losses.device, want.losses.router_z};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(losses[i], all[i], 1e-12 * (1 + all[i])) << i;
  return sent;
}

// Every loss has a part in the gradients.
MoeConfig with_losses(MoeConfig c) {
  c.seq_balance_alpha = 0.3f, c.batch_balance_alpha = 0.2f, c.device_balance_alpha = 0.1f, c.router_z_alpha = 0.05f;
  c.devices = 2;
  return c;
}

TEST(SpreadMoe, BitsOfOneProcess) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Index shared : {0, 1, 2}) check({.config = with_losses(moe_config(40, 24, 8, 3, shared)), .dtype = dtype});
}

// What of the other ranks' tokens a loss needs is its own: their number, of sequences and of tokens, or the load.
TEST(SpreadMoe, EachLossAlone) {
  const auto with = [](auto set) {
    MoeConfig c = moe_config(40, 24, 8, 3, 1);
    c.devices = 2;
    set(c);
    return c;
  };
  for (const MoeConfig& c :
       {with([](MoeConfig& m) { m.seq_balance_alpha = 0.3f; }), with([](MoeConfig& m) { m.batch_balance_alpha = 0.2f; }),
        with([](MoeConfig& m) { m.device_balance_alpha = 0.1f; }), with([](MoeConfig& m) { m.router_z_alpha = 0.05f; })})
    for (const int group : {1, 2, 4}) check({.config = c, .ranks = 4, .group = group, .sequences = {2, 0, 3, 1}});
}

TEST(SpreadMoe, SharedExpertsBehindAGate) {
  MoeConfig config = with_losses(moe_config(16, 8, 8, 3, 2));
  config.shared_gate = true;
  check({.config = config, .ranks = 2, .group = 2, .sequences = {2, 1}});
}

TEST(SpreadMoe, AnyNumberOfRanks) {
  const MoeConfig config = with_losses(moe_config(16, 8, 10, 4, 1));
  check({.config = config, .ranks = 3, .group = 3, .sequences = {1, 3, 2}});
  check({.config = config, .ranks = 4, .group = 4, .sequences = {1, 1, 1, 1}});
  check({.config = config, .ranks = 8, .group = 8, .sequences = {1, 1, 1, 1, 1, 1, 1, 1}});
}

TEST(SpreadMoe, GroupsThatRepeatEachOther) {
  check({.config = with_losses(moe_config(16, 8, 6, 2, 1)), .ranks = 4, .group = 2, .sequences = {1, 2, 1, 2}});
}

TEST(SpreadMoe, RanksWithoutTokens) {
  check({.config = with_losses(moe_config(16, 8, 6, 2, 1)), .ranks = 3, .group = 3, .sequences = {0, 4, 0}});
}

TEST(SpreadMoe, AllTokensToOneRank) {
  MoeConfig config = with_losses(moe_config(16, 8, 8, 3, 1));
  config.selection_bias = true;
  check({.config = config, .ranks = 2, .group = 2, .sequences = {3, 1}, .all_to_first = true});
}

TEST(SpreadMoe, MoreChosenThanThereAreRanksAndAllOfThem) {
  check({.config = with_losses(moe_config(16, 8, 4, 4, 1)), .ranks = 2, .group = 2, .sequences = {1, 1}});
}

TEST(SpreadMoe, PartialSums) {
  const MoeConfig config = with_losses(moe_config(64, 8, 8, 6, 1));
  const Case c{.config = config, .ranks = 2, .group = 2, .sequences = {4, 4}};
  Case partial = c;
  partial.partial = true;
  const std::uint64_t rows = check(c), sums = check(partial);
  EXPECT_LT(sums, rows * 2 / 3);  // three rows a rank become one
}

// A token goes once to a rank, whatever it chose there: here all eight experts, of which four are on the other rank.
TEST(SpreadMoe, TokensAreSentOnce) {
  const MoeConfig config = moe_config(16, 8, 8, 8, 0);
  const Index tokens = 2 * kLength;
  const std::uint64_t sent = check({.config = config, .ranks = 2, .group = 2, .sequences = {1, 1}});
  const std::uint64_t token = 16 * 4, row = 16 * 4;
  // There: x and dy of every token, 12 bytes a row. Back: y and dx of every row, and the gradient of its weight. And
  // counts.
  const std::uint64_t wanted = static_cast<std::uint64_t>(tokens) * (2 * token + 4 * (12 + 2 * row + 4)) + 2 * 2 * 8;
  EXPECT_EQ(sent, wanted);
}

TEST(SpreadMoe, TokensThatAllRanksHave) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const MoeConfig config = moe_config(24, 16, 7, 3, 2);
    const MoeWeights weights = moe_weights(config, dtype, 3);
    const Tensor x = random_tensor(dtype, {5, 24}, 9);
    Context one(2);
    const MoeForward want = MoeLayer(config, weights).forward(one, x);
    run_ranks(3, [&](const std::shared_ptr<Comm>& world) {
      Context ctx(1);
      Mesh mesh = parallel::make_mesh(world, 3);
      mesh.same_tokens = true;
      const SpreadMoeLayer layer(config, weights_here(config, weights, mesh), mesh), whole(config, weights, mesh);
      EXPECT_TRUE(test::same_bits(whole.forward(ctx, x, {}).out.y, want.y));
      EXPECT_TRUE(test::same_bits(layer.forward(ctx, x, {}).out.y, want.y));
    });
  }
}

TEST(SpreadMoe, FewerExpertsThanRanks) {
  const MoeConfig config = moe_config(8, 8, 2, 1, 0);
  const MoeWeights weights = moe_weights(config, DType::kF32, 1);
  run_ranks(3, [&](const std::shared_ptr<Comm>& world) {
    const Mesh mesh = parallel::make_mesh(world, 3);
    EXPECT_TRUE(testing::throws_error([&] { SpreadMoeLayer(config, weights, mesh); },
                                      {"expert-parallel is 3", "only 2 routed experts"}));
  });
}

}  // namespace
}  // namespace dsmoe
