// A small model with latent attention whose kv_b is in parts, as GGUF files have it: quantized, f16 or bf16.
#include <gtest/gtest.h>

#include "model/families/family.h"
#include "model/transformer.h"
#include "ops/mixed.h"
#include "ops/quantize.h"
#include "support/expect_error.h"
#include "support/run_model.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::logits_of;

// A projection of queries or none, heads that are whole blocks of 256, or of 32 only, or of neither.
struct Kind {
  DType keys, values;
  Index nope, rank;
  bool narrow;
};

ModelConfig config_of(const Kind& kind) {
  ModelConfig c = family_of("deepseek_v2").default_config();
  c.vocab_size = 97, c.hidden_size = 256, c.intermediate_size = 256, c.moe_intermediate_size = 128;
  c.num_hidden_layers = 2, c.num_attention_heads = 3, c.num_key_value_heads = 3, c.first_k_dense_replace = 1;
  c.n_routed_experts = 4, c.num_experts_per_tok = 4, c.n_shared_experts = 1, c.max_position_embeddings = 64;
  c.topk_method = "greedy", c.n_group = c.topk_group = 1;
  c.initializer_range = 0.06;
  c.kv_lora_rank = kind.rank, c.qk_nope_head_dim = kind.nope, c.qk_rope_head_dim = 32, c.v_head_dim = 40;
  c.q_lora_rank.reset();
  if (kind.narrow) c.q_lora_rank = 64;
  return c;
}

Tensor stored_as(DType dtype, const Tensor& from) {
  Tensor to(dtype, from.shape());
  const auto numbers = from.span<float>();
  if (is_quantized(dtype)) {
    const auto columns = static_cast<std::size_t>(from.dim(1));
    for (Index r = 0; r < from.dim(0); ++r)
      ops::quantize_row(dtype, numbers.subspan(static_cast<std::size_t>(r) * columns, columns),
                        to.rows(r, r + 1).raw_mutable());
    return to;
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (dtype == DType::kF16) to.data<Float16>()[i] = Float16(numbers[i]);
    if (dtype == DType::kBF16) to.data<BFloat16>()[i] = BFloat16(numbers[i]);
    if (dtype == DType::kF32) to.data<float>()[i] = numbers[i];
  }
  return to;
}

// f32, but for kv_b.
ModelWeights with_parts(const Kind& kind, const ModelConfig& c, Context& ctx) {
  ModelWeights w = random_weights(c, 5, DType::kF32, ctx);
  const auto heads = c.num_attention_heads;
  for (LayerTensors& l : w.layers) {
    const LatentSizes sizes{heads, kind.nope, c.v_head_dim, kind.rank};
    const Tensor whole = l.kv_b.weight;
    l.kv_b = {{}, stored_as(kind.keys, latent_keys(whole, sizes)), stored_as(kind.values, latent_values(whole, sizes))};
  }
  return w;
}

// The same numbers, whole and f32.
ModelWeights unpacked(const ModelWeights& from) {
  ModelWeights w = from;
  for (LayerTensors& l : w.layers) l.kv_b = {l.kv_b.whole().to(DType::kF32), {}, {}};
  return w;
}

constexpr Kind kKinds[] = {{DType::kQ5_0, DType::kQ4_K, 64, 256, false}, {DType::kQ8_0, DType::kQ8_0, 32, 96, true},
                           {DType::kQ6_K, DType::kQ6_K, 256, 256, true}, {DType::kQ4_0, DType::kQ5_K, 96, 256, false},
                           {DType::kF16, DType::kF16, 24, 20, false},    {DType::kBF16, DType::kF32, 24, 20, true}};

class QuantizedLatent : public ::testing::TestWithParam<Kind> {
 protected:
  QuantizedLatent() {
    for (std::int32_t i = 0; i < 13; ++i) ids.push_back(i * 37 % 97);
  }
  Context ctx{2};
  ModelConfig config = config_of(GetParam());
  ModelWeights weights = with_parts(GetParam(), config, ctx);
  Transformer model{config, weights};
  std::vector<std::int32_t> ids;
};

TEST_P(QuantizedLatent, LogitsHaveTheSameBitsAloneAndBesideOthers) {
  EXPECT_EQ(model.dtype(), DType::kF32);
  for (const DType cache : {DType::kF32, DType::kBF16}) {
    const Tensor whole = logits_of(ctx, model, ids, 13, cache);
    for (const Index chunk : {1, 3, 5})
      EXPECT_TRUE(test::same_bits(logits_of(ctx, model, ids, chunk, cache), whole)) << chunk;
    Context one(1);
    EXPECT_TRUE(test::same_bits(logits_of(one, model, ids, 13, cache), whole));
  }
}

// Of two products per layer rows are rounded to 8 bits; and an activation that f32 rounding moves across a half takes the
// next step, as in quantized_test.cpp.
TEST_P(QuantizedLatent, IsCloseToTheReferenceAndToTheSameNumbersInF32) {
  const bool rounds = is_quantized(GetParam().keys);
  Context ref(1, Backend::kRef);
  const Tensor got = logits_of(ctx, model, ids, 13, DType::kF32);
  const double apart = rounds ? std::sqrt(4.0) * test::kInt8Error : test::chain_limit(DType::kF32, 20, 512);
  EXPECT_TRUE(test::close(got, logits_of(ref, model, ids, 13, DType::kF32), apart));
  const Tensor plain = logits_of(ctx, Transformer(config, unpacked(weights)), ids, 13, DType::kF32);
  EXPECT_TRUE(test::close(got, plain, apart));
  EXPECT_FALSE(rounds && test::close(got, plain, apart / 100)) << "the blocks were not used";
}

// Keys, which are the values too, are rounded to half a step of 1/256, and where that is faster so are queries, weights of
// the softmax and its results; in two layers. Products with blocks round again what a moved activation changes.
TEST_P(QuantizedLatent, ACacheOfBf16RoundsWhatAttentionTakes) {
  const Tensor want = logits_of(ctx, model, ids, 13, DType::kF32);
  const double error = test::relative_error(logits_of(ctx, model, ids, 13, DType::kBF16), want);
  EXPECT_LT(error, std::sqrt(10.0) * 0.002 + (is_quantized(GetParam().keys) ? std::sqrt(4.0) * test::kInt8Error : 0));
  EXPECT_GT(error, 0) << "nothing was rounded";
}

TEST_P(QuantizedLatent, IsStoredInItsPartsAndReadWhole) {
  for (const Parameter& p : parameter_list(config)) {
    const std::vector<ModelWeights::Stored> stored = model.weights().stored(p);
    if (p.role != "attention.kv_b.weight") {
      ASSERT_EQ(stored.size(), 1u);
      EXPECT_EQ(stored[0].numbers, p.shape.numel()) << p.name;
      continue;
    }
    ASSERT_EQ(stored.size(), 2u);
    EXPECT_TRUE(stored[0].dtype == GetParam().keys && stored[1].dtype == GetParam().values);
    EXPECT_EQ(stored[0].numbers + stored[1].numbers, p.shape.numel());
    const LatentWeights& parts = model.weights().layers[static_cast<std::size_t>(p.layer)].kv_b;
    EXPECT_EQ(stored[0].bytes() + stored[1].bytes(), parts.keys.bytes() + parts.values.bytes());
    const Tensor whole = model.weights().dense(p);
    EXPECT_EQ(whole.shape(), p.shape);
    const LatentSizes sizes{config.num_attention_heads, GetParam().nope, config.v_head_dim, GetParam().rank};
    const auto same_numbers = [](const Tensor& a, const Tensor& b) {
      return test::same_bits(ops::dequantized(a, DType::kF32), ops::dequantized(b, DType::kF32));
    };
    EXPECT_TRUE(same_numbers(latent_keys(whole, sizes), parts.keys));
    EXPECT_TRUE(same_numbers(latent_values(whole, sizes), parts.values));
  }
  // A copy of its own has it whole.
  const ModelWeights copy = owned_copy(config, weights, DType::kF32);
  EXPECT_FALSE(copy.layers[0].kv_b.in_parts());
  EXPECT_TRUE(test::same_bits(copy.layers[0].kv_b.weight, unpacked(weights).layers[0].kv_b.weight));
}

TEST_P(QuantizedLatent, CannotBeTrained) {
  EXPECT_FALSE(model.trainable());
  ModelGradients grads = zero_gradients(config);
  EXPECT_TRUE(testing::throws_error([&] { model.loss_and_gradients(ctx, ids, ids, 13, 1, 1, grads); }, {"f32"}));
  EXPECT_TRUE(Transformer(config, unpacked(weights)).trainable());
}

TEST_P(QuantizedLatent, ItsBlocksAloneMakeAModelQuantized) {
  EXPECT_EQ(has_quantized(spec_of(config), weights), is_quantized(GetParam().keys));
  EXPECT_EQ(model.kv_dtype(), is_quantized(GetParam().keys) ? DType::kBF16 : DType::kF32);
}

INSTANTIATE_TEST_SUITE_P(Kinds, QuantizedLatent, ::testing::ValuesIn(kKinds), [](const auto& kind) {
  return std::string(to_string(kind.param.keys)) + "_" + std::string(to_string(kind.param.values));
});

}  // namespace
}  // namespace dsmoe
