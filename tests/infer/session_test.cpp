#include "infer/session.h"

#include <gtest/gtest.h>

#include "dsmoe/error.h"
#include "formats/folder_export.h"
#include "formats/gguf_export.h"
#include "formats/model_source.h"
#include "infer/engine_support.h"
#include "infer/evaluate.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using infer::Session;

ModelConfig small() { return test::engine_config(64); }

Transformer model(DType dtype = DType::kF32) {
  Context ctx(1);
  return Transformer(small(), random_weights(small(), 5, dtype, ctx));
}

const std::vector<std::int32_t> kPrompt = {3, 9, 27, 31, 4, 12, 36, 8, 24};
const SamplerOptions kGreedy{.temperature = 0};

TEST(Session, ChunksAndThreadsGiveTheSameText) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Transformer m = model(dtype);
    std::vector<std::int32_t> want;
    for (const int threads : {1, 2}) {
      for (const Index chunk : {1, 4, 512}) {
        Context ctx(threads);
        Session s(ctx, m, {.chunk = chunk});
        const Generated g = s.generate(kPrompt, {.max_tokens = 20, .sampler = {.seed = 7}});
        EXPECT_EQ(g.ids.size(), 20u);
        EXPECT_EQ(g.prompt_tokens, 9);
        if (want.empty()) want = g.ids;
        EXPECT_EQ(g.ids, want) << threads << " threads, pieces of " << chunk;
      }
    }
  }
}

// A model is used from its files where they are mapped. What was computed with bytes that are not there any more is not
// given to anyone.
TEST(Session, AModelThatIsTruncatedInUse) {
  const testing::TempFolder dir;
  Context ctx(2);
  const ModelConfig c = small();
  const ModelWeights w = random_weights(c, 5, DType::kF32, ctx);
  const auto tensor = [&](const Parameter& p, std::size_t) { return w.dense(p); };
  save_model(dir / "folder", c, DType::kF32, tensor, 20'000);  // several files
  write_gguf(ctx, dir / "file.gguf", c, gguf_export_metadata(c, {}, {}, "x"), gguf_file_type("f32"), tensor, {}, {});
  const std::string shard = "model-00003-of-";
  std::filesystem::path third;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "folder"))
    if (entry.path().filename().string().starts_with(shard)) third = entry.path();
  ASSERT_FALSE(third.empty());
  const auto check = [&](const std::filesystem::path& path, const std::filesystem::path& file) {
    const Transformer mapped = load_model(path, {}, {.storage = Storage::kMapped});
    const Transformer copied = load_model(path, {}, {.storage = Storage::kMemory});
    const auto source = ModelSource::open(path);
    source->check_tensors();
    Session s(ctx, mapped), other(ctx, copied);
    const Generated want = s.generate(kPrompt, {.max_tokens = 3, .sampler = kGreedy});
    std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
    const auto fails = [&](auto&& call) {
      return testing::throws_error(call, {file.string(), "truncated"}, ErrorCode::kIo);
    };
    EXPECT_TRUE(fails([&] { s.generate(kPrompt, {.max_tokens = 3, .sampler = kGreedy}); }));
    EXPECT_EQ(s.history().size(), kPrompt.size() + want.ids.size() - 1) << "a pass that fails changes nothing";
    EXPECT_TRUE(fails([&] { Evaluator(ctx, mapped, DType::kF32).add(kPrompt); }));
    EXPECT_TRUE(fails([&] { owned_copy(c, mapped.weights(), DType::kF32); }));
    EXPECT_EQ(other.generate(kPrompt, {.max_tokens = 3, .sampler = kGreedy}).ids, want.ids) << "memory of its own";
    EXPECT_TRUE(fails([&] { save_model(dir / "copy", *source, DType::kF32, 1 << 30); }));
    EXPECT_TRUE(fails([&] { save_model(dir / "copy", *source, DType::kBF16, 1 << 30); }));
    EXPECT_TRUE(fails(
        [&] { write_gguf(ctx, dir / "copy.gguf", *source, source->export_metadata("x"), gguf_file_type("q8_0"), {}); }));
    EXPECT_FALSE(std::filesystem::exists(dir / "copy" / "config.json"));
    EXPECT_FALSE(std::filesystem::exists(dir / "copy" / "model.safetensors"));
    EXPECT_FALSE(std::filesystem::exists(dir / "copy.gguf"));
  };
  check(dir / "folder", third);
  check(dir / "file.gguf", dir / "file.gguf");
}

TEST(Session, RewindingGivesWhatAFreshSessionGives) {
  const Transformer m = model();
  Context ctx(1);
  Session s(ctx, m), fresh(ctx, m);
  s.generate(kPrompt, {.max_tokens = 10, .sampler = kGreedy});
  s.rewind(4);
  EXPECT_EQ(s.history().size(), 4u);
  const std::vector<std::int32_t> rest = {7, 7, 20};
  std::vector<std::int32_t> all(kPrompt.begin(), kPrompt.begin() + 4);
  all.insert(all.end(), rest.begin(), rest.end());
  EXPECT_TRUE(test::same_bits(s.feed(rest), fresh.feed(all)));
  EXPECT_THROW(s.rewind(100), Error);
}

// Past max_position_embeddings, dynamic rope turns by the context: the bits of a text do not depend on its chunks, and are
// those of an evaluation that has the whole text at once.
TEST(Session, DynamicRopeDoesNotDependOnChunks) {
  ModelConfig c = small();
  c.max_position_embeddings = 6, c.rope_scaling = {RopeScalingType::kDynamic, 2};
  Context ctx(1);
  const Transformer m(c, random_weights(c, 5, DType::kF32, ctx));
  const auto length = static_cast<Index>(kPrompt.size());
  Tensor whole;
  Evaluator(ctx, m, DType::kF32).add(kPrompt, [&](const Tensor& logits) {
    whole = logits.rows(length - 1, length).clone();
  });
  for (const Index chunk : {1, 4, 512}) {
    Session s(ctx, m, {.context = length, .chunk = chunk});
    EXPECT_TRUE(test::same_bits(s.feed(kPrompt), whole)) << "pieces of " << chunk;
    s.rewind(5);
    EXPECT_TRUE(test::same_bits(s.feed(std::span(kPrompt).subspan(5)), whole)) << "after rewinding";
  }
  Session longer(ctx, m, {.context = 2 * length});
  EXPECT_FALSE(test::same_bits(longer.feed(kPrompt), whole)) << "another context, other angles";
}

// Over the border of a page and back, token by token and in chunks.
TEST(Session, RewindingAcrossPagesGivesWhatAFreshSessionGives) {
  ModelConfig c = small();
  c.max_position_embeddings = 600;
  Context ctx(1);
  const Transformer m(c, random_weights(c, 5, DType::kF32, ctx));
  std::vector<std::int32_t> text;
  for (std::int32_t i = 0; i < 530; ++i) text.push_back(i * 7 % 50);
  Session s(ctx, m, {.chunk = 100});
  s.feed(text);
  for (const std::size_t back : {std::size_t{512}, std::size_t{511}, std::size_t{256}, std::size_t{20}}) {
    s.rewind(static_cast<Index>(back));
    Session fresh(ctx, m);
    const std::vector<std::int32_t> rest(text.rbegin(), text.rbegin() + 9);
    std::vector<std::int32_t> all(s.history());
    all.insert(all.end(), rest.begin(), rest.end());
    EXPECT_TRUE(test::same_bits(s.feed(rest), fresh.feed(all))) << back;
  }
}

TEST(Session, EndsForTheReasonItGives) {
  const Transformer m = model();
  Context ctx(1);
  const auto run = [&](const GenerateOptions& o, Index context, const std::function<bool(std::int32_t)>& f = {}) {
    Session s(ctx, m, {.context = context});
    return s.generate(kPrompt, o, f);
  };
  EXPECT_EQ(run({.max_tokens = 5, .sampler = kGreedy}, 64).finish, Finish::kLength);
  EXPECT_EQ(run({.max_tokens = 0, .sampler = kGreedy}, 64).ids.size(), 0u);
  const Generated full = run({.max_tokens = -1, .sampler = kGreedy}, 15);
  EXPECT_EQ(full.finish, Finish::kContext);
  EXPECT_EQ(full.ids.size(), 7u) << "six run, and the one that the last of them gave";
  const Generated first = run({.max_tokens = 5, .sampler = kGreedy}, 64);
  const Generated ended = run({.max_tokens = 5, .sampler = kGreedy, .end_tokens = {first.ids[2]}}, 64);
  EXPECT_EQ(ended.finish, Finish::kEos);
  EXPECT_LT(ended.ids.size(), 3u);
  EXPECT_EQ(run({.max_tokens = 5, .sampler = kGreedy}, 64, [](std::int32_t) { return false; }).finish, Finish::kStopped);
}

TEST(Session, APromptThatDoesNotFitIsRefusedAndChangesNothing) {
  const Transformer m = model();
  Context ctx(1);
  Session s(ctx, m, {.context = 5});
  EXPECT_TRUE(testing::throws_error([&] { s.feed(kPrompt); }, {"context of 5"}));
  EXPECT_TRUE(s.history().empty());
  EXPECT_THROW(s.feed(std::vector<std::int32_t>{50}), Error) << "an id past the vocabulary";
  EXPECT_THROW(s.feed({}), Error);
}

TEST(Session, TheProbeHearsEveryMoeLayer) {
  const Transformer m = model();
  Context ctx(1);
  Session s(ctx, m);
  std::vector<Index> layers;
  s.set_probe([&](Index layer, const Routing& r) {
    layers.push_back(layer);
    EXPECT_EQ(r.experts.shape(), Shape({9, 2}));
  });
  s.feed(kPrompt);
  EXPECT_EQ(layers, (std::vector<Index>{1, 2}));
}

TEST(Evaluator, AgreesWithTheTrainingLoss) {
  const Transformer m = model();
  Context ctx(2);
  Evaluator e(ctx, m, DType::kF32);
  e.add(kPrompt);
  Index heard = 0;
  e.add(kPrompt, [&](const Tensor& logits) { heard += logits.dim(0); });
  EXPECT_EQ(heard, 9);
  EXPECT_EQ(e.result().predicted, 16);
  std::vector<std::int32_t> targets(kPrompt.begin() + 1, kPrompt.end());
  targets.push_back(-100);
  ModelGradients grads = zero_gradients(m.config());
  const LossResult loss = m.loss_and_gradients(ctx, kPrompt, targets, 9, 1.0f, 1.0f, grads);
  EXPECT_NEAR(e.result().mean(), loss.mean(), 1e-6 * loss.mean());
  EXPECT_NEAR(e.result().perplexity(), std::exp(loss.mean()), 1e-4 * std::exp(loss.mean()));
}

}  // namespace
}  // namespace dsmoe
