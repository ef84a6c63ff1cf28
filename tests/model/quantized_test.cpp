// A small model with quantized matrices: close to the f32 model it was made from, and a token's logits have the same bits
// alone and beside others.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/transformer.h"
#include "ops/quantize.h"
#include "support/expect_error.h"
#include "support/run_model.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

ModelConfig small_config() {
  ModelConfig c;
  c.vocab_size = 97, c.hidden_size = 256, c.intermediate_size = 256, c.moe_intermediate_size = 128;
  c.num_hidden_layers = 2, c.num_attention_heads = 4, c.num_key_value_heads = 2, c.first_k_dense_replace = 1;
  c.n_routed_experts = 8, c.n_shared_experts = 2, c.num_experts_per_tok = 3, c.max_position_embeddings = 64;
  c.initializer_range = 0.06;
  return c;
}

// As a file would have it: norms and router f32, matrices whose rows are no whole blocks in another type.
ModelWeights quantized(const ModelConfig& config, DType dtype, Context& ctx) {
  const ModelWeights plain = random_weights(config, 5, DType::kF32, ctx);
  const std::vector<Parameter> parameters = parameter_list(config);
  std::vector<Tensor> tensors;
  for (const Parameter& p : parameters) {
    const Tensor from = plain.dense(p);
    tensors.push_back(from);
    if (!is_matrix(p)) continue;
    const DType here = p.shape[1] % block_of(dtype).numbers == 0 ? dtype
                       : dtype == DType::kQ4_K                   ? DType::kQ5_0
                                                                 : DType::kQ8_0;
    if (!is_quantized(here)) {
      tensors.back() = from.to(here);
      continue;
    }
    Tensor to(here, p.shape);
    ops::quantize_row(here, from.span<float>(), to.raw_mutable());
    tensors.back() = to;
  }
  return listed_weights(config, parameters, std::move(tensors));
}

// How far the matrices are from those that they were made from, relative to the norm of all of them.
double weight_error(const ModelConfig& config, const ModelWeights& rounded, const ModelWeights& plain) {
  double difference = 0, norm = 0;
  for (const Parameter& p : parameter_list(config)) {
    if (!is_matrix(p)) continue;
    const Tensor stored = rounded.dense(p), want = plain.dense(p);
    Tensor numbers(DType::kF32, want.shape());
    if (is_quantized(stored.dtype()))
      ops::dequantize_row(stored.dtype(), stored.raw(), numbers.span<float>());
    else
      numbers = stored.to(DType::kF32);
    for (Index i = 0; i < want.numel(); ++i) {
      difference += std::pow(test::value(numbers, i) - test::value(want, i), 2);
      norm += std::pow(test::value(want, i), 2);
    }
  }
  return std::sqrt(difference / norm);
}

using test::logits_of;

class QuantizedModel : public ::testing::TestWithParam<DType> {
 protected:
  QuantizedModel() : model(small_config(), quantized(small_config(), GetParam(), ctx)) {
    for (std::int32_t i = 0; i < 13; ++i) ids.push_back(i * 37 % 97);
  }
  Context ctx{2};
  Transformer model;
  std::vector<std::int32_t> ids;
};

TEST_P(QuantizedModel, LogitsHaveTheSameBitsAloneAndBesideOthers) {
  EXPECT_EQ(model.dtype(), DType::kF32);
  for (const DType cache : {DType::kF32, DType::kBF16, DType::kQ8_0}) {
    const Tensor whole = logits_of(ctx, model, ids, 13, cache);
    for (const Index chunk : {1, 3, 5})
      EXPECT_TRUE(test::same_bits(logits_of(ctx, model, ids, chunk, cache), whole)) << chunk;
    Context one(1);
    EXPECT_TRUE(test::same_bits(logits_of(one, model, ids, 13, cache), whole));
  }
}

TEST_P(QuantizedModel, CpuIsCloseToTheReference) {
  Context ref(1, Backend::kRef);
  // An activation that f32 rounding moves across a half takes the next of 254 steps; that moves others in the layers above,
  // until both sides have rounding errors of their own, in the five products that a token passes per layer, over two
  // layers.
  EXPECT_TRUE(test::close(logits_of(ctx, model, ids, 13, DType::kF32), logits_of(ref, model, ids, 13, DType::kF32),
                          std::sqrt(10.0) * test::kInt8Error * 2));
}

TEST_P(QuantizedModel, IsCloseToTheModelItWasMadeFrom) {
  ModelConfig all = small_config();
  all.num_experts_per_tok = all.n_routed_experts;  // so that rounding changes no choice
  const ModelWeights weights = random_weights(all, 5, DType::kF32, ctx), rounded = quantized(all, GetParam(), ctx);
  const Tensor want = logits_of(ctx, Transformer(all, weights), ids, 13, DType::kF32);
  const double error = test::relative_error(logits_of(ctx, Transformer(all, rounded), ids, 13, DType::kF32), want);
  // A token passes seven matrices per layer (q, k, v, o, gate, up, down), the embedding and the head. Each of these
  // products has the error of its weights and, but for f16, of its rounded rows; they are independent, and none weighs more
  // than the whole result.
  const double rows = GetParam() == DType::kF16 ? 0 : test::kInt8Error;
  const double limit = 1.25 * std::sqrt(7.0 * static_cast<double>(all.num_hidden_layers) + 2) *
                       std::hypot(weight_error(all, rounded, weights), rows);
  EXPECT_LT(error, limit);
  EXPECT_GT(error, limit / 20) << "nothing was quantized";
}

// What a narrower KV cache costs: only keys and values are rounded, to half a step of 1/256 (bf16) or of 1/127 of the
// largest of 32 numbers (q8_0, about 2.5 deviations: 0.6% of a row). Twice for keys and values; two layers.
TEST_P(QuantizedModel, ANarrowerCacheRoundsKeysAndValuesOnly) {
  EXPECT_EQ(model.kv_dtype(), GetParam() == DType::kF16 ? DType::kF32 : DType::kBF16);
  EXPECT_EQ(model.kv_dtype(KvType::kQ8_0), DType::kQ8_0);
  const Tensor want = logits_of(ctx, model, ids, 13, DType::kF32);
  for (const auto& [cache, step] : {std::pair{DType::kBF16, 0.002}, {DType::kQ8_0, 0.006}}) {
    const double error = test::relative_error(logits_of(ctx, model, ids, 13, cache), want);
    // Quantized products round again what a moved activation changes, as in CpuIsCloseToTheReference.
    EXPECT_LT(error, 4 * step + (GetParam() == DType::kF16 ? 0 : 4 * std::sqrt(10.0) * 0.006)) << to_string(cache);
    EXPECT_GT(error, 0) << "nothing was rounded";
  }
}

TEST(KvCache, Q8_0NeedsHeadsOfWholeBlocks) {
  ModelConfig c = small_config();
  Context ctx(1);
  c.num_attention_heads = c.hidden_size / 16, c.num_key_value_heads = 2;
  const Transformer narrow(c, random_weights(c, 5, DType::kF32, ctx));
  EXPECT_EQ(narrow.kv_dtype(), DType::kF32);
  EXPECT_TRUE(testing::throws_error([&] { narrow.make_kv_pool(8, DType::kQ8_0); }, {"kv-type q8_0", "have 16", "bf16"}));
  EXPECT_TRUE(testing::throws_error([&] { narrow.make_kv_pool(8, DType::kF16); }, {"cannot be f16", "q8_0"}));
}

TEST_P(QuantizedModel, CannotBeTrained) {
  ModelGradients grads = zero_gradients(model.config());
  EXPECT_TRUE(
      testing::throws_error([&] { model.loss_and_gradients(ctx, ids, ids, 13, 1, 1, grads); }, {"quantized", "f32"}));
}

INSTANTIATE_TEST_SUITE_P(Types, QuantizedModel,
                         ::testing::Values(DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ4_K,
                                           DType::kQ5_K, DType::kQ6_K),
                         [](const auto& type) { return to_string(type.param); });

TEST(QuantizedWeights, OneLayerMayMixTypesButNotF32AndBf16Alone) {
  Context ctx(1);
  const ModelConfig config = small_config();
  // Routed expert 2 of layer 1 with another down_proj.
  const auto with_bf16 = [&](const ModelWeights& from) {
    const std::vector<Parameter> parameters = parameter_list(config);
    std::vector<Tensor> tensors;
    for (const Parameter& p : parameters) {
      const bool other = p.role == "experts.down.weight" && p.layer == 1 && p.expert == 2;
      tensors.push_back(other ? random_weights(config, 5, DType::kBF16, ctx).dense(p) : from.dense(p));
    }
    return listed_weights(config, parameters, std::move(tensors));
  };
  EXPECT_NO_THROW(Transformer(config, with_bf16(quantized(config, DType::kQ4_0, ctx))));
  const ModelWeights plain = with_bf16(random_weights(config, 5, DType::kF32, ctx));
  EXPECT_TRUE(testing::throws_error([&] { Transformer(config, plain); }, {"experts.2.down_proj", "bf16", "f32"}));
}

}  // namespace
}  // namespace dsmoe
