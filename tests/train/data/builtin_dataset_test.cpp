#include "train/data/builtin_dataset.h"

#include <gtest/gtest.h>

#include <set>

#include "data_test_support.h"
#include "train/corpus/builtin_tokenizer.h"
#include "train/corpus/corpus.h"

namespace dsmoe::train {
namespace {

struct BuiltinTest : ::testing::Test {
  static const Tokenizer& tokenizer() {
    static const Tokenizer t = builtin_tokenizer(512);
    return t;
  }
  static Data open(std::uint64_t seed = 0, Index length = 64) {
    return open_dataset({.sequence_length = length, .seed = seed}, tokenizer(), 512);
  }
};

TEST_F(BuiltinTest, TheVocabularyFitsTheTinyPreset) {
  EXPECT_EQ(tokenizer().vocab_size(), 512);
  EXPECT_EQ(tokenizer().bos_id(), 256);
  EXPECT_EQ(tokenizer().eos_id(), 257);
  EXPECT_EQ(builtin_tokenizer(512).to_json(), tokenizer().to_json());
}

TEST_F(BuiltinTest, EndlessAndTheSameForOnePosition) {
  const Data data = open();
  EXPECT_EQ(data.training->sequences(), 0);
  EXPECT_EQ(data.training->labels().size(), corpus_domains().size());
  Batch all = data.training->batch(1000000, 1);
  for (Index i = 1; i < 5; ++i) all = joined(all, data.training->batch(1000000 + i, 1));
  EXPECT_TRUE(same(all, data.training->batch(1000000, 5)));
  EXPECT_TRUE(same(all, open().training->batch(1000000, 5)));
  EXPECT_FALSE(same(all, open(1).training->batch(1000000, 5)));
  EXPECT_EQ(all.ids.size(), 5u * 64);
  EXPECT_EQ(all.targets.size(), 5u * 64);
  EXPECT_EQ(all.labels.size(), 5u * 64);
  EXPECT_NO_THROW(data.training->batch((Index{1} << 43) - 1, 1));
  EXPECT_TRUE(throws_error([&] { data.training->batch(Index{1} << 43, 1); }, {"batch"}, ErrorCode::kInvalidArgument));
}

TEST_F(BuiltinTest, SequencesAreDocumentsInARow) {
  const Data data = open(3, 400);
  const Batch batch = data.training->batch(0, 2);
  const std::vector<std::int32_t> even(batch.ids.begin(), batch.ids.begin() + 400),
      odd(batch.ids.begin() + 400, batch.ids.end());
  EXPECT_EQ(even[0], 256);
  const std::string text = tokenizer().decode(even, {.skip_special = true});
  const std::string documents =
      corpus_document(3, 0).text + corpus_document(3, 1).text + corpus_document(3, 2).text + corpus_document(3, 3).text;
  EXPECT_EQ(text, documents.substr(0, text.size()));
  EXPECT_NE(tokenizer().decode(odd, {.skip_special = true}).find(corpus_document(3, (1 << 20) + 1).text),
            std::string::npos);
  for (std::size_t i = 0; i < 400; ++i) {
    const std::int32_t next = i + 1 < 400 ? even[i + 1] : batch.targets[399];
    EXPECT_EQ(batch.targets[i], next == 256 ? kNoTarget : next);
  }
  EXPECT_EQ(batch.labels[0], corpus_document(3, 0).domain);
}

TEST_F(BuiltinTest, OddSequencesBeginAnywhere) {
  const Data data = open(0, 16);
  int with_bos = 0;
  for (Index i = 0; i < 200; ++i) {
    const bool bos = data.training->batch(i, 1).ids[0] == 256;
    if (i % 2 == 0) {
      EXPECT_TRUE(bos);
    }
    with_bos += bos;
  }
  EXPECT_LT(with_bos, 120);
}

TEST_F(BuiltinTest, DomainsAreBalanced) {
  const Data data = open(0, 128);
  const Batch batch = data.training->batch(0, 2000);
  std::vector<double> shares(corpus_domains().size());
  for (const auto label : batch.labels) shares[label] += 1.0 / static_cast<double>(batch.labels.size());
  for (const double share : shares) EXPECT_NEAR(share * static_cast<double>(shares.size()), 1, 0.12);
}

TEST_F(BuiltinTest, TheHeldOutPartIsItsOwn) {
  const Data data = open();
  ASSERT_NE(data.held_out, nullptr);
  const Index n = data.held_out->sequences();
  EXPECT_EQ(n, kBuiltinHeldOut);
  std::set<std::vector<std::int32_t>> training;
  for (Index i = 0; i < 2000; ++i) training.insert(data.training->batch(i, 1).ids);
  for (Index i = 0; i < n; ++i) EXPECT_FALSE(training.contains(data.held_out->batch(i, 1).ids)) << i;
  EXPECT_TRUE(same(data.held_out->batch(n, 2), data.held_out->batch(0, 2))) << "then again";
}

TEST_F(BuiltinTest, IdsFilesAreUsedAsTheyAre) {
  TempFolder dir;
  write_bytes(dir / "x.ids", "1 2 3\n4 5 6\n");
  const Data data =
      open_dataset({.inputs = {(dir / "x.ids").string()}, .order = DataOptions::Order::kSequential}, tokenizer(), 512);
  EXPECT_EQ(data.held_out, nullptr);
  EXPECT_EQ(data.training->batch(0, 2).ids, (std::vector<std::int32_t>{1, 2, 4, 5}));
  EXPECT_EQ(data.training->batch(0, 2).targets, (std::vector<std::int32_t>{2, 3, 5, 6}));
}

}  // namespace
}  // namespace dsmoe::train
