// Whole models against golden files from PyTorch (tests/model/golden): logits, losses and every gradient.
#include <gtest/gtest.h>

#include <filesystem>

#include "formats/model_source.h"
#include "io/safetensors.h"
#include "model/transformer.h"
#include "support/run_model.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

// What the project promises against the reference in f32 (relative, by norm).
constexpr double kLogitLimit = 1e-4;
constexpr double kGradientLimit = 1e-3;
constexpr double kChunkLimit = 1e-5;

std::vector<std::filesystem::path> folders() {
  std::vector<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::directory_iterator(DSMOE_TEST_DATA "/model/golden"))
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
  const Tensor ids = golden.tensor("input_ids"), want = golden.tensor("logits");
  const Transformer model = load_model(GetParam());
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(2, backend);
    for (Index b = 0; b < ids.dim(0); ++b) {
      const auto row = ids.rows(b, b + 1);
      const auto sequence = row.span<std::int32_t>();
      const Tensor expected = want.rows(b, b + 1).reshape({want.dim(1), want.dim(2)});
      const Tensor whole = logits_of(ctx, model, sequence, ids.dim(1));
      EXPECT_TRUE(test::close(whole, expected, kLogitLimit));
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
  EXPECT_NEAR(loss.mean(), test::value(golden.tensor("loss"), 0), 1e-5 * loss.mean());
  EXPECT_NEAR(loss.balance.total(), test::value(golden.tensor("aux_loss"), 0), 1e-5 * (1 + loss.balance.total()));
  for (const Parameter& p : parameter_list(model.config()))
    EXPECT_TRUE(test::close(grads.dense(p), golden.tensor("grad." + p.name), kGradientLimit)) << p.name;
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

TEST(ModelGoldenFolders, AreThere) { EXPECT_GE(folders().size(), 12u); }

}  // namespace
}  // namespace dsmoe
