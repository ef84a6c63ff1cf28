// Training of models with latent attention (MLA), of which queries are made of fewer numbers.
#include <gtest/gtest.h>

#include "model/families/family.h"
#include "model/modules.h"
#include "support/tolerance.h"
#include "train/lora.h"
#include "train/memory.h"
#include "train/support.h"

namespace dsmoe::train {
namespace {

using namespace test;

ModelConfig latent_config() {
  ModelConfig c = family_of("deepseek_v3").default_config();
  const ModelConfig small = small_config();
  c.vocab_size = small.vocab_size, c.hidden_size = small.hidden_size, c.intermediate_size = small.intermediate_size;
  c.moe_intermediate_size = small.moe_intermediate_size, c.num_hidden_layers = small.num_hidden_layers;
  c.num_attention_heads = 2, c.n_routed_experts = 8, c.num_experts_per_tok = 2, c.first_k_dense_replace = 1;
  c.kv_lora_rank = 16, c.q_lora_rank = 12, c.qk_nope_head_dim = 10, c.qk_rope_head_dim = 6, c.v_head_dim = 8;
  c.n_group = c.topk_group = 1;
  c.max_position_embeddings = 64, c.initializer_range = small.initializer_range;
  return c;
}

TEST(LatentTrainer, LearnsAndRecomputesTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Context two(2), three(3);
    TrainOptions o = small_options();
    o.dtype = dtype;
    Trainer kept = make_trainer(two, o, latent_config());
    o.recompute = Recompute::kBlock;
    Trainer again = make_trainer(three, o, latent_config());
    const Walks data;
    double first = 0, last = 0;
    for (Index i = 0; i < 40; ++i) {
      last = test::step(kept, data, i * 4, 4).loss;
      if (i == 0) first = last;
      test::step(again, data, i * 4, 4);
    }
    EXPECT_EQ(test::distance(again, kept), 0) << to_string(dtype);
    EXPECT_LT(last, first - 0.3) << to_string(dtype);
  }
}

TEST(LatentTrainer, OnlyAdaptersChange) {
  Context ctx(2);
  TrainOptions o = small_options();
  o.lora_rank = 4;
  Trainer trainer = make_trainer(ctx, o, latent_config()), before = make_trainer(ctx, o, latent_config());
  const Walks data;
  for (Index i = 0; i < 5; ++i) test::step(trainer, data, 0, 4);
  Index adapted = 0;
  for (const Parameter& p : parameter_list(latent_config())) {
    const bool same = dsmoe::test::same_bits(trainer.model().weights().dense(p), before.model().weights().dense(p));
    EXPECT_EQ(same, !p.traits.adapter) << p.name;
    adapted += !same && p.in(ParameterGroup::kAttention);
  }
  EXPECT_EQ(adapted, 3 * 5) << "q_a, q_b, kv_a, kv_b and o of three layers";
}

// What a block says that it keeps is what its tensors hold.
TEST(LatentTrainer, KeptBytesAreThoseOfTheTensors) {
  Context ctx(1);
  const ModelConfig c = latent_config();
  const Transformer model(c, random_weights(c, 1, DType::kF32, ctx));
  const std::vector<std::int32_t> ids(16, 3);
  ForwardSaved saved;
  model.forward(ctx, ForwardBatch::training(ids, 16), {}, &saved);
  std::size_t bytes = 0;
  const AttentionSaved& a = saved.blocks.front().attention;
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.q_unnormed, &a.k_unnormed, &a.q_projected})
    bytes += t->bytes();
  const MlaSpec spec = std::get<MlaSpec>(model.spec().layers.front().attention);
  Index kept = 0;
  for (const Index per_token : kept_bytes(spec, c.hidden_size, 4)) kept += 16 * per_token;
  EXPECT_EQ(static_cast<Index>(bytes), kept);
}

}  // namespace
}  // namespace dsmoe::train
