// Models of every family on a GPU: the same composition of ops as on the CPU, so the same numbers; against transformers'
// own logits, losses and gradients, and with packed weights.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "cuda/gpu_test.h"
#include "formats/model_source.h"
#include "io/safetensors.h"
#include "model/families/family.h"
#include "model/row_order.h"
#include "model/transformer.h"
#include "ops/mixed.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;
constexpr Index kVocab = 512;

// Wide enough for blocks of 32 and for the tensor cores. Every expert is chosen, so that no rounding changes a choice.
ModelConfig wide_config(const Family& family) {
  ModelConfig c = family.default_config();
  c.vocab_size = kVocab, c.hidden_size = 128, c.num_hidden_layers = 2, c.num_attention_heads = 4;
  c.num_key_value_heads = family.model_type == "olmoe" ? 4 : 2;
  if (c.kv_lora_rank) {
    c.num_key_value_heads = 4, c.n_group = c.topk_group = 1, c.q_lora_rank = 64;
    c.kv_lora_rank = 96, c.qk_nope_head_dim = 40, c.qk_rope_head_dim = 32, c.v_head_dim = 48;
  } else {
    c.explicit_head_dim = 32;
  }
  c.moe_intermediate_size = 64, c.intermediate_size = 64;
  c.n_routed_experts = c.num_experts_per_tok.emplace(4);
  if (c.n_shared_experts && !c.shared_expert_intermediate_size) c.n_shared_experts = 1;
  if (c.shared_expert_intermediate_size) c.shared_expert_intermediate_size = 128, c.n_shared_experts = 2;
  if (c.rotary_dim) c.rotary_dim = 16;
  c.pad_token_id.reset(), c.bos_token_id.reset(), c.eos_token_id.clear();
  c.max_position_embeddings = 512, c.initializer_range = 0.1;
  return c;
}

class CudaFamilies : public GpuTest {
 protected:
  static Ids some_ids(Index count) {
    Draw draw(3);
    Ids ids;
    for (Index i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(draw(kVocab)));
    return ids;
  }
  static Tensor logits(Context& ctx, const Transformer& model, std::span<const std::int32_t> ids, Index chunk) {
    const auto tokens = static_cast<Index>(ids.size());
    Tensor all(DType::kF32, {tokens, model.config().vocab_size});
    KvSequence sequence(model.make_kv_pool(tokens, model.dtype()));
    for (Index t = 0; t < tokens; t += chunk) {
      const Index n = std::min(chunk, tokens - t);
      const auto part = ids.subspan(static_cast<std::size_t>(t), static_cast<std::size_t>(n));
      const Tensor some = ctx.fetch(model.logits(ctx, ForwardBatch::of(ctx, sequence, part, n)));
      std::memcpy(all.rows(t, t + n).raw_mutable(), some.raw(), some.bytes());
    }
    return all;
  }
  static Transformer on_gpu(const ModelConfig& c, const ModelWeights& w, DType dtype) {
    return Transformer(c, owned_copy(spec_of(c), w, dtype, Device::kCuda));
  }
};

TEST_F(CudaFamilies, LogitsAreTheCpusInAnyChunks) {
  Context host(0);
  const Ids ids = some_ids(70);
  for (const Family* const family : all_families()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(::testing::Message() << family->model_type << " " << to_string(dtype));
      const ModelConfig c = wide_config(*family);
      const ModelWeights w = random_weights(c, 5, dtype, host);
      const Transformer here(c, w), there = on_gpu(c, w, dtype);
      const Tensor want = logits(host, here, ids, 70), got = logits(ctx(), there, ids, 70);
      EXPECT_TRUE(close(got, want, chain_limit(dtype, 20, 512)));
      for (const Index chunk : {1, 7, 16, 33}) EXPECT_TRUE(same_bits(logits(ctx(), there, ids, chunk), got)) << chunk;
    }
  }
}

// 512 + 64 numbers in the cache and a token's norm in the launch of its projections, which wide_config() is too small for.
TEST_F(CudaFamilies, LatentsOfReleasedSizesInAnyChunks) {
  Context host(0);
  const Ids ids = some_ids(150);
  for (const Family* const family : all_families()) {
    ModelConfig c = wide_config(*family);
    if (!c.kv_lora_rank) continue;
    SCOPED_TRACE(family->model_type);
    c.hidden_size = 576, c.kv_lora_rank = 512, c.qk_rope_head_dim = 64;
    const ModelWeights w = random_weights(c, 5, DType::kBF16, host);
    const Transformer here(c, w), there = on_gpu(c, w, DType::kBF16);
    const Tensor want = logits(host, here, ids, 150), got = logits(ctx(), there, ids, 150);
    EXPECT_TRUE(close(got, want, chain_limit(DType::kBF16, 20, 576)));
    for (const Index chunk : {1, 7, 16, 33, 140}) EXPECT_TRUE(same_bits(logits(ctx(), there, ids, chunk), got)) << chunk;
  }
}

TEST_F(CudaFamilies, PackedWeightsHaveTheBitsOfUnpackedOnes) {
  Context host(0);
  const Ids ids = some_ids(70);
  for (const Family* const family : all_families()) {
    SCOPED_TRACE(family->model_type);
    const ModelConfig c = wide_config(*family);
    if (c.latent_attention()) continue;  // one of its matrices is never packed: packed_model_test.cpp
    const ModelSpec spec = spec_of(c);
    const std::vector<Parameter> parameters = parameter_list(c);
    std::vector<Tensor> stored, plain;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& p = parameters[i];
      const Tensor x = initial_tensor(c, p, i, 5, DType::kF32, host);
      const bool packs = is_matrix(p) && p.shape[p.shape.rank() - 1] % 32 == 0;
      stored.push_back(packs ? Tensor(DType::kQ8_0, x.shape()) : x);
      Tensor wide(DType::kF32, x.shape());
      if (packs) ops::quantize_row(DType::kQ8_0, x.span<float>(), stored.back().raw_mutable());
      ops::to_floats(stored.back().dtype(), stored.back().raw(), wide.span<float>());
      plain.push_back(wide.to(stored_dtype(p, DType::kBF16)));
    }
    const Transformer packed(c, packed_copy(spec, listed_weights(spec, parameters, stored), ctx()));
    const Transformer unpacked = on_gpu(c, listed_weights(spec, parameters, plain), DType::kBF16);
    const Tensor want = logits(ctx(), unpacked, ids, 70);
    for (const Index chunk : {70, 1, 7, 33}) EXPECT_TRUE(same_bits(logits(ctx(), packed, ids, chunk), want)) << chunk;
  }
}

// What the project promises against the reference in f32 (relative, by norm), as on the CPU.
TEST_F(CudaFamilies, LogitsLossesAndGradientsOfTransformers) {
  for (const auto& entry : fs::directory_iterator(DSMOE_TEST_DATA "/model/golden_families")) {
    if (!fs::exists(entry.path() / "golden.safetensors")) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const auto golden = io::SafetensorsFile::open(entry.path() / "golden.safetensors");
    const Tensor ids = golden.tensor("input_ids"), targets = golden.tensor("targets");
    const Transformer here = load_model(entry.path());
    const ModelConfig& c = here.config();
    const Transformer model = on_gpu(c, here.weights(), DType::kF32);
    for (Index b = 0; b < ids.dim(0); ++b) {
      const Tensor row = ids.rows(b, b + 1), want = golden.tensor("logits").rows(b, b + 1);
      const Tensor got = logits(ctx(), model, row.span<std::int32_t>(), ids.dim(1));
      EXPECT_TRUE(close(got, want.reshape(got.shape()), 1e-4));
    }
    Index count = 0;
    for (const std::int32_t t : targets.span<std::int32_t>()) count += t >= 0;
    ModelGradients grads = zero_gradients(spec_of(c), Device::kCuda);
    const LossResult loss =
        model.loss_and_gradients(ctx(), ids.span<std::int32_t>(), targets.span<std::int32_t>(), ids.dim(1),
                                 static_cast<float>(1.0 / static_cast<double>(count)), 1.0f, grads);
    EXPECT_NEAR(loss.mean(), value(golden.tensor("loss"), 0), 1e-5 * loss.mean());
    const bool pairs = family_of(c.model_type).rotary_pairs;
    for (const Parameter& p : parameter_list(c)) {
      if (!p.traits.gradient) continue;
      const Tensor want = golden.tensor("grad." + p.name).reshape(p.shape);
      EXPECT_TRUE(close(to_file_order(grads.fetched(p), row_order(p, pairs)), want, 1e-3)) << p.name;
    }
  }
}

}  // namespace
}  // namespace dsmoe::test
