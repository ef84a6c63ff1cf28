// One rank of an MPI job whose ranks compute on GPUs: what travels between them, sums, and the layer with its experts
// spread over all ranks against one process. Where ranks share a GPU, NCCL wants to be told that they are on different
// machines.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>

#include "cuda/layer_case.h"
#include "moe/spread_layer.h"
#include "parallel/world.h"
#include "support/temp_folder.h"
#include "train/gradient_sums.h"
#include "train/rank_task.h"

namespace dsmoe {
namespace {

using parallel::Bytes;
using parallel::Comm;
using parallel::ConstBytes;
using parallel::Mesh;
using test::fetch;
using test::random_tensor;
using test::same_bits;

class GpuRank : public test::GpuTest {
 protected:
  static Comm& world() { return *parallel::world(); }
  testing::TempFolder folder_;
};

Bytes bytes_in(Tensor t) { return {static_cast<std::byte*>(t.raw_mutable()), t.bytes()}; }

// From rank a to rank b go (7 a + 3 b) % 5 rows of a's number, none among them.
TEST_F(GpuRank, Exchange) {
  const auto rows = [](Index a, Index b) { return (7 * a + 3 * b) % 5 * 1000; };
  const Index me = world().rank();
  std::vector<Tensor> sent, received;
  std::vector<ConstBytes> to;
  std::vector<Bytes> from;
  for (Index r = 0; r < world().size(); ++r) {
    Tensor t(DType::kF32, {rows(me, r)});
    for (float& x : t.span<float>()) x = static_cast<float>(me);
    sent.push_back(ctx().place(t));
    received.push_back(ctx().empty(DType::kF32, {rows(r, me)}));
    to.push_back(bytes_in(sent.back()));
    from.push_back(bytes_in(received.back()));
  }
  const auto expect_all = [&] {
    for (std::size_t r = 0; r < received.size(); ++r) {
      const Tensor t = ctx().fetch(received[r]);
      for (const float x : t.span<float>()) ASSERT_EQ(x, static_cast<float>(r));
      ctx().fill_zero(received[r]);
    }
  };
  for (int times = 0; times < 3; ++times) world().start_exchange(ctx(), to, from)->wait();
  expect_all();
  world().Comm::start_exchange(ctx(), to, from)->wait();  // by the memory of this machine
  expect_all();
}

void sum_up(Context& ctx, Comm& group, std::span<const Tensor> tensors, train::Sharing sharing = {}) {
  train::GradientSums sums(sharing);
  for (const Tensor& t : tensors) sums.add(group, 0, t, {});
  sums.finish(ctx);
}

// The same bits as the sums of this machine's memory.
TEST_F(GpuRank, Sums) {
  const auto seed = static_cast<std::uint64_t>(world().rank() + 1);
  std::vector<Tensor> here, there;
  for (const Index n : {1, 1000, 7, 1 << 19}) {
    here.push_back(random_tensor(DType::kF32, {n}, seed));
    there.push_back(ctx().place(here.back()));
  }
  sum_up(ctx(), world(), there);
  for (std::size_t i = 0; i < here.size(); ++i) {
    world().all_reduce(here[i].span<float>());
    EXPECT_TRUE(same_bits(ctx().fetch(there[i]), here[i])) << i;
  }
  Tensor part = random_tensor(DType::kF32, {1001}, seed);
  const Tensor on_gpu = ctx().place(part);
  sum_up(ctx(), world(), {&on_gpu, 1}, {.zero = 1});
  const Comm::Range share = world().share(1001);
  world().all_reduce(part.span<float>());
  EXPECT_TRUE(same_bits(ctx().fetch(on_gpu.rows(share.first, share.last)), part.rows(share.first, share.last)));
}

MoeWeights weights_here(const MoeConfig& c, const MoeWeights& all, const Mesh& mesh) {
  const Comm::Range here = mesh.experts_here(c.routed_experts);
  const Index s = c.shared_experts, expert = c.expert_size * c.hidden_size;
  MoeWeights w{all.gate, all.gate_bias, Experts::empty(s + here.count(), c.expert_size, c.hidden_size, all.gate.dtype()),
               all.shared_gate};
  const auto copy = [&](const Tensor& from, Tensor& to, Index numbers) {
    const auto bytes = [&](Index experts) { return row_bytes(from.dtype(), experts * numbers); };
    auto* const target = static_cast<char*>(to.raw_mutable());
    const auto* const source = static_cast<const char*>(from.raw());
    std::memcpy(target, source, bytes(s));
    std::memcpy(target + bytes(s), source + bytes(s + here.first), bytes(here.count()));
  };
  copy(all.experts.gate_up(), w.experts.gate_up(), 2 * expert);
  copy(all.experts.down(), w.experts.down(), expert);
  return w;
}

void check_layer(Context& ctx, const std::shared_ptr<Comm>& world, int group, const test::Inputs& in, bool partial) {
  SCOPED_TRACE(::testing::Message() << to_string(in.dtype()) << ", groups of " << group << (partial ? ", sums" : ""));
  const MoeConfig& c = in.config;
  const test::Outputs want = test::train_on_gpu(ctx, in);
  Mesh mesh = parallel::make_mesh(world, group);
  mesh.partial_sums = partial;
  const SpreadMoeLayer layer(c, weights_here(c, in.weights, mesh).to(Device::kCuda), mesh);
  const Comm::Range mine = world->share(in.tokens() / in.sequence);
  const Index first = mine.first * in.sequence, last = mine.last * in.sequence;
  SpreadMoeLayer::Forward forward = layer.forward(
      ctx, ctx.place(in.x.rows(first, last)), {.training = true, .sequence_length = in.sequence, .others = world.get()});
  const Comm::Range here = mesh.experts_here(c.routed_experts);
  MoeGradients grads;
  grads.gate = ctx.zeros(DType::kF32, {c.routed_experts, c.hidden_size});
  if (c.shared_gate) grads.shared_gate = ctx.zeros(DType::kF32, {c.hidden_size});
  grads.experts = Experts::zeros(c.shared_experts + here.count(), c.expert_size, c.hidden_size, DType::kF32, Device::kCuda);
  const Tensor dx = layer.backward(ctx, ctx.place(in.dy.rows(first, last)), *forward.saved, grads, {});

  const test::LayerLimits limits = in.limits();
  EXPECT_TRUE(same_bits(ctx.fetch(forward.out.routing.experts), want.routing.experts.rows(first, last)));
  if (partial) {
    EXPECT_TRUE(test::close(ctx.fetch(forward.out.y), want.y.rows(first, last), limits.y));
    EXPECT_TRUE(test::close(ctx.fetch(dx), want.dx.rows(first, last), limits.dx));
  } else {
    EXPECT_TRUE(same_bits(ctx.fetch(forward.out.y), want.y.rows(first, last)));
    EXPECT_TRUE(same_bits(ctx.fetch(dx), want.dx.rows(first, last)));
  }
  const Tensor losses = ctx.fetch(forward.out.losses);
  std::vector<double> sums(losses.span<double>().begin(), losses.span<double>().end());
  world->all_reduce(std::span(sums));
  const double one[] = {want.losses.sequence, want.losses.batch, want.losses.device, want.losses.router_z};
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(sums[i], one[i], test::chain_limit(DType::kF32, 3, in.backward_length()) * one[i]) << i;
  const std::vector<Tensor> everywhere = {grads.gate};
  sum_up(ctx, *world, everywhere);
  EXPECT_TRUE(test::close(ctx.fetch(grads.gate), want.grads.gate, limits.gate));
  const std::vector<Tensor> spread = {grads.experts.gate_up().rows(c.shared_experts, c.shared_experts + here.count()),
                                      grads.experts.down().rows(c.shared_experts, c.shared_experts + here.count())};
  sum_up(ctx, *mesh.data, spread);
  const auto wanted = [&](const Tensor& t) { return t.rows(c.shared_experts + here.first, c.shared_experts + here.last); };
  const Tensor gate_up = ctx.fetch(spread[0]), down = ctx.fetch(spread[1]);
  if (group == world->size() && !partial) {
    EXPECT_TRUE(same_bits(gate_up, wanted(want.grads.experts.gate_up())));
    EXPECT_TRUE(same_bits(down, wanted(want.grads.experts.down())));
  } else {
    EXPECT_TRUE(test::close(gate_up, wanted(want.grads.experts.gate_up()), limits.experts));
    EXPECT_TRUE(test::close(down, wanted(want.grads.experts.down()), limits.experts));
  }
}

void check_layers(Context& ctx, std::initializer_list<const char*> cases) {
  const std::shared_ptr<Comm> all = parallel::world();
  for (const char* name : cases)
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      test::Case c = test::fixed_case(name);
      if (c.sequence == 0) c.sequence = 5;
      if (c.e < all->size()) continue;
      const test::Inputs in = test::random_inputs(c, dtype, 3);
      for (const cuda::Path path : test::paths_for(dtype, c.d, c.f)) {
        const test::Forced forced(path);
        SCOPED_TRACE(::testing::Message() << name << " " << cuda::to_string(path));
        check_layer(ctx, all, all->size(), in, /*partial=*/false);
        if (all->size() >= 4) check_layer(ctx, all, all->size() / 2, in, /*partial=*/false);
        check_layer(ctx, all, all->size(), in, /*partial=*/true);
      }
    }
}

TEST_F(GpuRank, SpreadLayer) {
  check_layers(ctx(), {"sixteen_b_small", "v3_like", "many_tokens", "unaligned", "unaligned_wide"});
}
TEST_F(GpuRank, SmallLayer) { check_layers(ctx(), {"v3_like"}); }

// Steps of one rank after another layout's checkpoint.
train::test::Trained steps_from(Context& ctx, const std::shared_ptr<Comm>& world, train::test::Task task,
                                const train::test::Layout& layout, const std::string& saved) {
  task.from = saved;
  train::test::Trained run;
  train::test::train_as_rank(ctx, world, task, layout, run);
  return run;
}

// Fifty steps are the training of one process, also when it goes on after half of them: as it was, or alone.
void check_training(Context& ctx, const std::filesystem::path& folder, Index zero) {
  using train::test::Trained;
  const std::shared_ptr<Comm> all = parallel::world();
  const int ranks = all->size();
  for (const bool spread : {true, false}) {
    SCOPED_TRACE(spread ? "spread" : "repeated");
    train::test::Task task;
    task.config = train::test::with_balance(/*batch=*/spread);
    task.options.dtype = spread ? DType::kBF16 : DType::kF32;
    task.options.batch_size = 8, task.options.steps = task.steps = 50;
    Trained one, other_order, half;
    train::test::train_as_rank(ctx, parallel::self(), task, {}, one);
    task.reversed = true;
    train::test::train_as_rank(ctx, parallel::self(), task, {}, other_order);
    task.reversed = false;
    const train::test::Layout layout{ranks, spread ? ranks : 1, zero};
    const std::string saved = all->broadcast(folder.string(), 0) + "/saved";
    task.steps = 25, task.to = saved;
    train::test::train_as_rank(ctx, all, task, layout, half);
    all->barrier();
    task.steps = 50;
    task.to.clear();
    for (const Trained& rest :
         {steps_from(ctx, all, task, layout, saved), steps_from(ctx, parallel::self(), task, {}, saved)}) {
      ASSERT_EQ(rest.steps.size(), 25u);
      Trained got = half;
      got.steps.insert(got.steps.end(), rest.steps.begin(), rest.steps.end());
      got.evaluations = rest.evaluations;
      expect_the_training_of_one(task, layout, one, other_order, got, /*balance=*/1e-6);
    }
    all->barrier();  // before the files are written again
  }
}

TEST_F(GpuRank, Training) { check_training(ctx(), folder_.path(), 0); }
TEST_F(GpuRank, TrainingWithZero1) { check_training(ctx(), folder_.path(), 1); }
TEST_F(GpuRank, TrainingWithZero2) { check_training(ctx(), folder_.path(), 2); }

}  // namespace
}  // namespace dsmoe

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::shared_ptr<dsmoe::parallel::Comm> world = dsmoe::parallel::world();
  if (dsmoe::cuda::available()) dsmoe::parallel::link_gpus_of_world();
  const int status = RUN_ALL_TESTS();
  if (status != 0) dsmoe::parallel::abort_world(status);
  if (world->rank() == 0) std::cerr << "checked " + std::to_string(world->size()) + " GPU ranks\n";
  dsmoe::parallel::leave_world();
  return status;
}
