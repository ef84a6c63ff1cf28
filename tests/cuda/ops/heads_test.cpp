// Products that every head has for itself, on a GPU against ops/ref; attention over the rows of latent attention, and the
// gradients of a model that has it.
#include "ops/heads.h"

#include <gtest/gtest.h>

#include "cuda/gpu_test.h"
#include "model/families/family.h"
#include "model/transformer.h"
#include "ops/attention.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using ops::HeadNumbers;
using ops::HeadRows;

struct HeadSizes {
  Index tokens, heads, inner, width;  // products of [tokens, inner] with [width, inner] per head
};
// DeepSeek-V2-Lite's sizes, and some that fit no tile.
constexpr HeadSizes kHeadSizes[] = {{1, 16, 512, 128}, {70, 16, 512, 128}, {5, 3, 34, 10}, {130, 2, 65, 67}};

class CudaHeads : public GpuTest {
 protected:
  // A part in the middle of every head's numbers, and of its rows.
  struct Operands {
    HeadNumbers x, y;
    HeadRows w;
    Operands(DType type, const HeadSizes& s)
        : x{random_tensor(type, {s.tokens, s.heads * (s.inner + 3)}, 1), {s.heads, 2, s.inner}},
          y{random_tensor(type, {s.tokens, s.heads * (s.width + 5)}, 2), {s.heads, 4, s.width}},
          w{random_tensor(type, {s.heads * (s.width + 6), s.inner}, 3), {s.heads, 1, s.width}} {}
    Operands placed(Context& ctx) const {
      Operands here = *this;
      here.x.x = ctx.place(x.x.clone()), here.y.x = ctx.place(y.x.clone()), here.w.w = ctx.place(w.w.clone());
      return here;
    }
  };
  Context ref_{1, Backend::kRef};
};

TEST_F(CudaHeads, ProductsAreRefs) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const HeadSizes& s : kHeadSizes) {
      const Operands o(type, s);
      const auto run = [&](auto op, double limit) {
        const Operands here = o.placed(ctx()), there = o.placed(ref_);
        const Tensor got = ctx().fetch(op(ctx(), here)), want = op(ref_, there);
        EXPECT_TRUE(close(got, want, limit)) << s.tokens << " " << s.heads << " " << s.inner << " " << s.width;
      };
      run([](Context& c, const Operands& n) { return ops::head_linear(c, n.x, n.w, n.y), n.y.x; }, limit(type, s.inner));
      run([](Context& c, const Operands& n) { return ops::head_linear_backward_input(c, n.y, n.w, n.x), n.x.x; },
          limit(type, s.width));
      run(
          [&](Context& c, const Operands& n) {
            HeadRows dw{c.place(random_tensor(DType::kF32, o.w.w.shape(), 4)), n.w.part};
            ops::head_linear_backward_weight(c, n.y, n.x, dw);
            return dw.w;
          },
          limit(DType::kF32, s.tokens + 1));
      for (const DType to : {DType::kF32, DType::kBF16})
        run(
            [&](Context& c, const Operands& n) {
              HeadNumbers copy{c.place(random_tensor(to, n.x.x.shape(), 5)), n.x.part};
              ops::copy_heads(c, n.x, copy);
              return copy.x;
            },
            0);
    }
  }
}

TEST_F(CudaHeads, ARowHasTheSameBitsAlone) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Operands all = Operands(type, kHeadSizes[1]).placed(ctx());
    const Tensor x = all.x.x, y = all.y.x;
    Operands one = all;
    one.x.x = x.rows(66, 67), one.y.x = ctx().empty(type, {1, y.dim(1)});
    ops::head_linear(ctx(), one.x, one.w, one.y);
    ops::head_linear(ctx(), all.x, all.w, all.y);
    Tensor a = ctx().empty(type, {1, 16 * 128}), b = ctx().empty(type, {1, 16 * 128});
    ops::copy_heads(ctx(), one.y, {a, {16, 0, 128}});
    ops::copy_heads(ctx(), {y.rows(66, 67), all.y.part}, {b, {16, 0, 128}});
    EXPECT_TRUE(same_bits(ctx().fetch(a), ctx().fetch(b)));
  }
}

// The kernels for aligned operands have the bits of those for any: every sum is one chain in ascending order.
TEST_F(CudaHeads, AlignedOperandsHaveTheSameBits) {
  constexpr HeadSizes kSizes[] = {{1, 16, 512, 128},   {16, 16, 512, 128}, {17, 3, 512, 128},  {65, 5, 512, 128},
                                  {300, 16, 512, 128}, {33, 2, 40, 24},    {200, 3, 200, 136}, {1, 1, 8, 8}};
  for (const HeadSizes& s : kSizes) {
    const Index in = s.inner + 64, out = s.width + 8;
    const HeadNumbers x{ctx().place(random_tensor(DType::kBF16, {s.tokens, s.heads * in}, 1)), {s.heads, 8, s.inner}},
        y{ctx().place(random_tensor(DType::kBF16, {s.tokens, s.heads * out}, 2)), {s.heads, 0, s.width}};
    const HeadRows w{ctx().place(random_tensor(DType::kBF16, {s.heads * (s.width + 6), s.inner}, 3)),
                     {s.heads, 1, s.width}};
    const auto run = [&] {
      const HeadNumbers to_y{y.x.clone(), y.part}, to_x{x.x.clone(), x.part};
      ops::head_linear(ctx(), x, w, to_y);
      ops::head_linear_backward_input(ctx(), y, w, to_x);
      return std::vector<Tensor>{ctx().fetch(to_y.x), ctx().fetch(to_x.x)};
    };
    const std::vector<Tensor> got = run();
    const Forced forced(cuda::Path::kMma);
    const std::vector<Tensor> want = run();
    EXPECT_TRUE(same_bits(got[0], want[0])) << s.tokens << " " << s.inner << " " << s.width;
    EXPECT_TRUE(same_bits(got[1], want[1])) << s.tokens << " " << s.inner << " " << s.width;
  }
}

// Heads of 576 numbers: one of keys, which are the values too, and 16 of queries.
TEST_F(CudaHeads, AttentionOverLatents) {
  const ops::AttentionShape shape{16, 1, 576, 0.1f};
  const Index tokens = 300;
  const std::vector<Index> tiles = {0, ops::kAttentionTile};
  const ops::Slice slice{0, tokens, 0, tiles};
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Tensor q = random_tensor(type, {tokens, 16 * 576}, 1, 0.3f), k = random_tensor(type, {tokens, 576}, 2, 0.3f);
    const Tensor dout = random_tensor(type, q.shape(), 3);
    const auto run = [&](Context& c) {
      const ops::Slices slices = ops::placed(c, {&slice, 1});
      const Tensor queries = c.place(q), keys = c.place(k), douts = c.place(dout);
      Tensor out = c.empty(type, q.shape()), lse = c.empty(DType::kF32, {16, tokens});
      ops::attention(c, shape, queries, keys, keys, slices, out, &lse);
      Tensor dq = c.empty(DType::kF32, q.shape()), dk = c.empty(DType::kF32, k.shape()),
             dv = c.empty(DType::kF32, k.shape());
      ops::attention_backward(c, shape, queries, keys, keys, slices, out, lse, douts, dq, dk, dv);
      return std::vector<Tensor>{c.fetch(out), c.fetch(dq), c.fetch(dk), c.fetch(dv)};
    };
    Context cpu(2);
    const std::vector<Tensor> got = run(ctx()), want = run(cpu);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(close(got[i], want[i], 3 * limit(type, tokens + 576))) << i << " " << to_string(type);
  }
}

// All experts are chosen, so that no token is undecided. With 96 + 32 numbers bf16 goes through the tensor cores.
TEST_F(CudaHeads, GradientsOfAModelAreTheCpus) {
  ModelConfig c = family_of("deepseek_v3").default_config();
  c.vocab_size = 101, c.hidden_size = 64, c.intermediate_size = 96, c.moe_intermediate_size = 32, c.num_hidden_layers = 2;
  c.num_attention_heads = 4, c.n_routed_experts = 4, c.num_experts_per_tok = 4, c.first_k_dense_replace = 1;
  c.n_group = c.topk_group = 1, c.max_position_embeddings = 64, c.initializer_range = 0.1;
  c.kv_lora_rank = 96, c.q_lora_rank = 48, c.qk_nope_head_dim = 24, c.qk_rope_head_dim = 32, c.v_head_dim = 16;
  std::vector<std::int32_t> ids, targets;
  for (std::int32_t i = 0; i < 2 * 40; ++i) ids.push_back(i * i % 101), targets.push_back((i * i + 7) % 101);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Context host(2);
    const ModelWeights w = random_weights(c, 3, dtype, host);
    const auto gradients = [&](Context& ctx, Device device) {
      const Transformer model(c, owned_copy(c, w, dtype, device));
      ModelGradients grads = zero_gradients(c, device);
      model.loss_and_gradients(ctx, ids, targets, 40, 1.0f / 80, 0.0f, grads);
      std::vector<Tensor> all;
      for (const Parameter& p : parameter_list(c))
        if (p.traits.gradient) all.push_back(grads.fetched(p));
      return all;
    };
    const std::vector<Tensor> got = gradients(ctx(), Device::kCuda), want = gradients(host, Device::kCpu);
    std::size_t i = 0;
    for (const Parameter& p : parameter_list(c)) {
      if (!p.traits.gradient) continue;
      // About 24 results of a layer are stored on the way there, and as many on the way back.
      const double limit = dtype == DType::kF32 ? 1e-3 : chain_limit(dtype, 2 * 24 * 2, 200);
      const Tensor &a = got[i], &b = want[i++];
      if (dtype == DType::kBF16 && p.role == "router.weight") continue;  // differences of numbers that are close
      EXPECT_TRUE(close(a, b, limit)) << p.name;
    }
  }
}

}  // namespace
}  // namespace dsmoe::test
