// Whole models against golden files from PyTorch (tests/model/golden): logits, losses and every gradient.
#include <gtest/gtest.h>

#include <filesystem>

#include "formats/model_source.h"
#include "io/safetensors.h"
#include "model/families/family.h"
#include "model/row_order.h"
#include "model/transformer.h"
#include "support/run_model.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

// What the project promises against the reference in f32 (relative, by norm).
constexpr double kLogitLimit = 1e-4;
constexpr double kGradientLimit = 1e-3;
constexpr double kLossLimit = 1e-5;
constexpr double kChunkLimit = 1e-5;

struct Limits {
  double logits = kLogitLimit, gradient = kGradientLimit, router = kGradientLimit, loss = kLossLimit;
};

// In bf16, what roundings explain. Per layer, a token is stored after the norm, q, k and v, rope, attention, o and the
// residual sum, and after the norm, gate and up, h, down, the experts' sum and the residual sum. PyTorch stores every step
// within these too, twice as many. Then come the last norm and the logits; backward passes as many again.
Limits limits_of(const Transformer& model, Index tokens, bool exact) {
  if (model.dtype() == DType::kF32) return {};
  const ModelConfig& c = model.config();
  const auto steps = static_cast<int>((exact ? 12 : 24) * c.num_hidden_layers + 2);
  const Index length = c.hidden_size + c.intermediate_size;
  const test::LayerLimits layer =
      test::layer_limits(DType::kBF16, {tokens, c.hidden_size, c.moe_intermediate_size, c.routed_experts()});
  const double logits = test::chain_limit(DType::kBF16, steps, length);
  const double gradient = test::chain_limit(DType::kBF16, 2 * steps, length + tokens);
  return {logits, gradient, layer.gate / layer.experts * gradient, logits};
}

// The prefix of the file's answers, which a bf16 file has from a run in bf16 and, beside them, exactly.
std::vector<std::string> answers(const io::SafetensorsFile& golden) {
  return golden.contains("exact.logits") ? std::vector<std::string>{"", "exact."} : std::vector<std::string>{""};
}

std::vector<std::filesystem::path> folders() {
  std::vector<std::filesystem::path> all;
  for (const char* const of : {"/model/golden", "/model/golden_families"})
    for (const auto& entry : std::filesystem::directory_iterator(std::string(DSMOE_TEST_DATA) + of))
      if (std::filesystem::exists(entry.path() / "golden.safetensors")) all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

class ModelGolden : public ::testing::TestWithParam<std::filesystem::path> {};

// Logits of one sequence, fed in pieces of `chunk` tokens. [T, V]
Tensor logits_of(Context& ctx, const Transformer& model, std::span<const std::int32_t> ids, Index chunk) {
  return test::logits_of(ctx, model, ids, chunk, model.dtype());
}

TEST_P(ModelGolden, Logits) {
  const auto golden = io::SafetensorsFile::open(GetParam() / "golden.safetensors");
  const Tensor ids = golden.tensor("input_ids");
  const Transformer model = load_model(GetParam());
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(2, backend);
    for (Index b = 0; b < ids.dim(0); ++b) {
      const auto row = ids.rows(b, b + 1);
      const auto sequence = row.span<std::int32_t>();
      const Tensor whole = logits_of(ctx, model, sequence, ids.dim(1));
      for (const std::string& from : answers(golden)) {
        const Tensor want = golden.tensor(from + "logits");
        EXPECT_TRUE(test::close(whole, want.rows(b, b + 1).reshape(whole.shape()),
                                limits_of(model, ids.numel(), !from.empty()).logits))
            << from;
      }
      for (const Index chunk : {1, 3, 7})
        EXPECT_TRUE(backend == Backend::kCpu ? test::same_bits(logits_of(ctx, model, sequence, chunk), whole)
                                             : test::close(logits_of(ctx, model, sequence, chunk), whole, kChunkLimit))
            << "in pieces of " << chunk;
    }
  }
}

TEST_P(ModelGolden, TheSameBitsForAnyNumberOfThreads) {
  const auto golden = io::SafetensorsFile::open(GetParam() / "golden.safetensors");
  const Tensor ids = golden.tensor("input_ids").rows(0, 1);
  const Transformer model = load_model(GetParam());
  Context one(1), two(2);
  EXPECT_TRUE(test::same_bits(logits_of(one, model, ids.span<std::int32_t>(), 100),
                              logits_of(two, model, ids.span<std::int32_t>(), 100)));
}

TEST_P(ModelGolden, LossAndGradients) {
  const auto golden = io::SafetensorsFile::open(GetParam() / "golden.safetensors");
  if (!golden.contains("grad.model.embed_tokens.weight")) GTEST_SKIP() << "no gradients in this file";
  const Tensor ids = golden.tensor("input_ids"), targets = golden.tensor("targets");
  const Transformer model = load_model(GetParam());
  Index count = 0;
  for (const std::int32_t t : targets.span<std::int32_t>()) count += t >= 0;
  ModelGradients grads = zero_gradients(model.config());
  Context ctx(2);
  const LossResult loss = model.loss_and_gradients(ctx, ids.span<std::int32_t>(), targets.span<std::int32_t>(), ids.dim(1),
                                                   static_cast<float>(1.0 / static_cast<double>(count)), 1.0f, grads);
  EXPECT_EQ(loss.count, count);
  for (const std::string& from : answers(golden)) {
    SCOPED_TRACE(from);
    const Limits limits = limits_of(model, ids.numel(), !from.empty());
    EXPECT_NEAR(loss.mean(), test::value(golden.tensor(from + "loss"), 0), limits.loss * loss.mean());
    EXPECT_NEAR(loss.balance.total(), test::value(golden.tensor(from + "aux_loss"), 0),
                limits.loss * (1 + loss.balance.total()));
    const bool pairs = family_of(model.config().model_type).rotary_pairs;
    for (const Parameter& p : parameter_list(model.config())) {
      if (!p.traits.gradient) continue;
      EXPECT_TRUE(test::close(to_file_order(grads.dense(p), row_order(p, pairs)),
                              golden.tensor(from + "grad." + p.name).reshape(p.shape),
                              p.role == "router.weight" ? limits.router : limits.gradient))
          << p.name;
    }
  }
}

TEST_P(ModelGolden, ChosenExperts) {
  const auto golden = io::SafetensorsFile::open(GetParam() / "golden.safetensors");
  if (golden.contains("exact.logits")) GTEST_SKIP() << "choices in bf16 are those of its own roundings";
  const Tensor ids = golden.tensor("input_ids"), targets = golden.tensor("targets");
  const Transformer model = load_model(GetParam());
  Context ctx(2);
  Index layers = 0;
  PassHooks hooks;
  hooks.routing = [&](Index layer, const Routing& routing) {
    ++layers;
    const std::string name = "topk_idx." + std::to_string(layer);
    if (!golden.contains(name)) return;
    const Tensor want = golden.tensor(name);
    ASSERT_EQ(routing.experts.shape(), want.shape());
    const Index k = want.dim(1);
    for (Index t = 0; t < want.dim(0); ++t) {
      const auto row = [&](const Tensor& of) {
        const auto all = of.span<std::int32_t>();
        return std::vector(all.begin() + t * k, all.begin() + (t + 1) * k);
      };
      std::vector<std::int32_t> a = row(routing.experts), b = row(want);
      std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
      EXPECT_EQ(a, b) << "layer " << layer << ", token " << t;
    }
  };
  Tensor losses(DType::kF32, {ids.numel()});
  model.losses(ctx, ids.span<std::int32_t>(), targets.span<std::int32_t>(), ids.dim(1), losses, hooks);
  EXPECT_GT(layers, 0);
}

TEST_P(ModelGolden, GreedyContinuation) {
  const auto golden = io::SafetensorsFile::open(GetParam() / "golden.safetensors");
  if (!golden.contains("greedy_ids")) GTEST_SKIP() << "no continuation in this file";
  const Tensor ids = golden.tensor("input_ids"), want = golden.tensor("greedy_ids");
  const Transformer model = load_model(GetParam());
  Context ctx(2);
  for (Index b = 0; b < ids.dim(0); ++b) {
    KvSequence sequence(model.make_kv_pool(ids.dim(1) + want.dim(1), DType::kF32));
    const Tensor row = ids.rows(b, b + 1);
    Tensor logits = model.logits(ctx, ForwardBatch::of(ctx, sequence, row.span<std::int32_t>()));
    for (Index i = 0; i < want.dim(1); ++i) {
      const auto l = std::as_const(logits).span<float>();
      const auto best = static_cast<std::int32_t>(std::max_element(l.begin(), l.end()) - l.begin());
      ASSERT_EQ(best, want.data<std::int32_t>()[b * want.dim(1) + i]) << "sequence " << b << ", step " << i;
      logits = model.logits(ctx, ForwardBatch::of(ctx, sequence, std::span(&best, 1)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, ModelGolden, ::testing::ValuesIn(folders()),
                         [](const auto& folder) { return folder.param.filename().string(); });

// What another length left behind in a model must not be used.
TEST(ModelRope, EveryContextHasItsOwnRotations) {
  const std::filesystem::path folder = DSMOE_TEST_DATA "/model/golden/rope_dynamic";
  const auto golden = io::SafetensorsFile::open(folder / "golden.safetensors");
  const Tensor row = golden.tensor("input_ids").rows(0, 1);
  const auto ids = row.span<std::int32_t>();
  const Transformer used = load_model(folder);
  Context ctx(1);
  for (const std::size_t length :
       {std::size_t{21}, std::size_t{5}, std::size_t{12}, std::size_t{21}, std::size_t{8}, std::size_t{20}}) {
    const Transformer fresh = load_model(folder);
    EXPECT_TRUE(
        test::same_bits(logits_of(ctx, used, ids.first(length), 100), logits_of(ctx, fresh, ids.first(length), 100)))
        << length;
  }
}

TEST(ModelGoldenFolders, AreThere) { EXPECT_GE(folders().size(), 13u); }

}  // namespace
}  // namespace dsmoe
