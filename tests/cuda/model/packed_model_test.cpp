// A model with packed quantized weights: the bits of the same model with its weights unpacked to bf16, in any chunks.
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/gpu_test.h"
#include "model/families/family.h"
#include "model/transformer.h"
#include "ops/mixed.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr Index kVocab = 523;

// As in files of type q4_k_m: the down projections' rows are too short for blocks of 256, those of the shared experts not.
DType mixture(const Parameter& p) {
  if (!is_matrix(p)) return DType::kF32;
  if (p.in(ParameterGroup::kHead)) return DType::kQ6_K;
  if (p.shape[1] % 256 != 0) return DType::kQ5_0;
  return p.role == "attention.v.weight" ? DType::kQ6_K : p.role == "attention.o.weight" ? DType::kQ5_K : DType::kQ4_K;
}
DType q8_0(const Parameter& p) { return is_matrix(p) ? DType::kQ8_0 : DType::kF32; }
// One matrix of a layer's experts that is not quantized: all of them are bf16 then.
DType with_f16(const Parameter& p) { return p.role == "experts.up.weight" && p.layer == 1 ? DType::kF16 : q8_0(p); }

struct Kind {
  const char* name;
  DType (*dtype_of)(const Parameter&);
  bool tied, latent = false;
  Index width = 256;
};
constexpr Kind kKinds[] = {{"mixture", mixture, false},
                           {"q8_0 tied", q8_0, true},
                           {"with f16", with_f16, false},
                           {"q8_0 latent", q8_0, false, true},
                           {"wide mixture", mixture, false, false, 768},  // whose norms are part of other kernels
                           {"wide q8_0", q8_0, false, false, 1024}};

class CudaPackedModel : public GpuTest {
 protected:
  void make(const Kind& kind) {
    ModelConfig c = kind.latent ? family_of("deepseek_v3").default_config() : ModelConfig();
    if (kind.latent) {
      c.kv_lora_rank = 96, c.q_lora_rank = 128, c.qk_nope_head_dim = 32, c.qk_rope_head_dim = 32, c.v_head_dim = 64;
      c.n_group = c.topk_group = 1;
    }
    c.vocab_size = kVocab, c.hidden_size = kind.width, c.intermediate_size = 320, c.moe_intermediate_size = 128;
    c.num_hidden_layers = 3, c.num_attention_heads = kind.width / 128, c.num_key_value_heads = kind.width / 128;
    c.first_k_dense_replace = 1;
    c.n_routed_experts = 16, c.num_experts_per_tok = 4, c.n_shared_experts = 2;
    c.max_position_embeddings = 4096, c.initializer_range = 0.1, c.tie_word_embeddings = kind.tied;
    const std::vector<Parameter> parameters = parameter_list(c);
    Context host(0);
    std::vector<Tensor> stored, plain;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor x = initial_tensor(c, parameters[i], i, 5, DType::kF32, host);
      const DType dtype = kind.dtype_of(parameters[i]);
      if (is_quantized(dtype)) {
        stored.emplace_back(dtype, x.shape());
        ops::quantize_row(dtype, x.span<float>(), stored.back().raw_mutable());
      } else {
        stored.push_back(x.to(dtype));
      }
      Tensor wide(DType::kF32, x.shape());
      ops::to_floats(dtype, stored.back().raw(), wide.span<float>());
      plain.push_back(wide.to(stored_dtype(parameters[i], DType::kBF16)));
    }
    const ModelSpec spec = spec_of(c);
    packed.emplace(c, packed_copy(spec, listed_weights(spec, parameters, stored), ctx()));
    unpacked.emplace(c, owned_copy(spec, listed_weights(spec, parameters, plain), DType::kBF16, Device::kCuda));
  }
  Tensor logits(const Transformer& model, const Ids& ids, Index chunk) {
    const auto tokens = static_cast<Index>(ids.size());
    Tensor all(DType::kF32, {tokens, kVocab});
    KvSequence sequence(model.make_kv_pool(tokens, model.dtype()));
    for (Index t = 0; t < tokens; t += chunk) {
      const Index n = std::min(chunk, tokens - t);
      const auto part = std::span(ids).subspan(static_cast<std::size_t>(t), static_cast<std::size_t>(n));
      const Tensor some = ctx().fetch(model.logits(ctx(), ForwardBatch::of(ctx(), sequence, part, n)));
      std::memcpy(all.rows(t, t + n).raw_mutable(), some.raw(), some.bytes());
    }
    return all;
  }

  std::optional<Transformer> packed, unpacked;
};

TEST_F(CudaPackedModel, HasTheBitsOfUnpackedWeights) {
  Draw draw(1);
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    make(kind);
    ASSERT_EQ(packed->dtype(), DType::kBF16);
    Ids ids;
    for (Index i = 0; i < 150; ++i) ids.push_back(static_cast<std::int32_t>(draw(kVocab)));
    const Tensor want = logits(*unpacked, ids, 150);
    for (const Index chunk : {150, 1, 7, 16, 17, 64, 100})
      EXPECT_TRUE(same_bits(logits(*packed, ids, chunk), want)) << chunk;
  }
}

TEST_F(CudaPackedModel, CannotBeTrained) {
  make(kKinds[0]);
  EXPECT_FALSE(packed->trainable());
}

}  // namespace
}  // namespace dsmoe::test
