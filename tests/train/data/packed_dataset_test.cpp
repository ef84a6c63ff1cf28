#include "train/data/packed_dataset.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "data_test_support.h"

namespace dsmoe::train {
namespace {

TEST(PackedDataset, DocumentsMeetByTheRule) {
  TestData t;
  t.file("a.txt", "ab");
  t.file("b.txt", "cdefg");
  // <bos> a b <eos> <bos> | c d e f g | <eos> is left out
  const Data data = t.open();
  EXPECT_EQ(data.training->sequences(), 2);
  EXPECT_EQ(t.show(*data.training, 0), "<bos>ab<eos> -> ab<eos>.");
  EXPECT_EQ(t.show(*data.training, 1), "cdef -> defg");
  EXPECT_EQ(t.show(*data.training, 2), "<bos>ab<eos> -> ab<eos>.") << "the next epoch";
  EXPECT_EQ(data.held_out, nullptr);
  EXPECT_EQ(data.report.tokens, 11u);
  EXPECT_EQ(data.report.documents, 2u);
  EXPECT_EQ(data.report.files, 2u);
  EXPECT_TRUE(data.training->labels().empty()) << "one label is none";
}

TEST(PackedDataset, LabelsAreThoseOfTheTargets) {
  TestData t;
  t.file("one/a.txt", "ab");
  t.file("two/deep/b.txt", "cdefg");
  t.file("zero.txt", "x");
  Data data = t.open();
  const auto names = [&](const Data& d, Index i) {
    std::string text;
    for (const auto label : d.training->batch(i, 1).labels) text += d.training->labels()[label] + " ";
    return text;
  };
  ASSERT_EQ(data.training->labels().size(), 3u);
  EXPECT_EQ(names(data, 0), "one one one two ");
  EXPECT_EQ(names(data, 1), "two two two two ");
  // <eos> <bos> x <eos> remain: not a sequence of five.
  t.options.label_by = DataOptions::LabelBy::kFile;
  data = t.open();
  EXPECT_EQ(names(data, 0), "one/a one/a one/a two/deep/b ");
  EXPECT_EQ(data.training->labels()[2], "zero");
}

TEST(PackedDataset, ABatchIsItsSequencesOneByOne) {
  TestData t;
  for (int i = 0; i < 6; ++i)
    t.file(std::to_string(i) + "/x.txt", std::string(static_cast<std::size_t>(7 + 13 * i), static_cast<char>('a' + i)));
  t.options.holdout = 0.2;
  for (const auto order : {DataOptions::Order::kSequential, DataOptions::Order::kShuffled}) {
    t.options.order = order;
    const Data data = t.open();
    for (const Dataset* part : {data.training.get(), data.held_out.get()}) {
      const Index n = part->sequences();
      ASSERT_GT(n, 3);
      Batch all = part->batch(3, 1);
      for (Index i = 4; i < 3 * n; ++i) all = joined(all, part->batch(i, 1));
      EXPECT_TRUE(same(all, part->batch(3, 3 * n - 3))) << "across epochs too";
      EXPECT_EQ(all.ids.size(), all.labels.size());
      EXPECT_FALSE(same(part->batch(0, 1), part->batch(1, 1)));
    }
  }
}

TEST(PackedDataset, WhereNothingIsLeftOfTheDataTheReasonIsSaid) {
  TestData t;
  t.file("a.jsonl", R"({"prompt": "one", "completion": "two", "id": 3})"
                    "\n"
                    R"({"text": null})");
  EXPECT_TRUE(throws_error([&] { t.open(); }, {"0 tokens", "2 lines or files were left out", "a.jsonl:1",
                                               "neither the field 'text' nor 'messages', it has 'completion', 'prompt'"}));
  t.file("a.jsonl", "");
  EXPECT_TRUE(throws_error([&] { t.open(); }, {"0 tokens", "give more"}));
}

TEST(PackedDataset, AHeldOutPartOfItsOwnFiles) {
  TestData t;
  std::filesystem::create_directory(t.dir / "held");
  t.file("train.txt", std::string(5 * 40, 'a'));
  for (const char c : {'x', 'y'}) write_bytes(t.dir / "held" / (std::string(1, c) + ".txt"), std::string(5 * 200, c));
  t.options.held_out_inputs = {(t.dir / "held").string()};
  t.options.holdout = 0.5;  // does not count then
  t.options.label_by = DataOptions::LabelBy::kFile;
  const Data data = t.open();
  EXPECT_EQ(data.training->sequences(), 40) << "nothing of the training data is held out";
  ASSERT_TRUE(data.held_out);
  EXPECT_EQ(data.held_out->sequences(), 400);
  ASSERT_EQ(data.held_out->labels().size(), 2u);
  // A first part of it has both files in about equal shares: a fifth of 400, one half each, is 40 +- 4.5.
  const Batch some = data.held_out->batch(0, 80);
  const auto of_second = std::count(some.labels.begin(), some.labels.end(), 1) / 4;
  EXPECT_GT(of_second, 20);
  EXPECT_LT(of_second, 60);
  t.options.seed = 7;
  EXPECT_TRUE(same(some, t.open().held_out->batch(0, 80))) << "the same whatever the seed";
  EXPECT_EQ(data.fingerprint, t.open().fingerprint);
  write_bytes(t.dir / "held" / "y.txt", std::string(5 * 200, 'z'));
  std::filesystem::last_write_time(t.dir / "held" / "y.txt",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_NE(data.fingerprint, t.open().fingerprint) << "other held-out text is other data";
  t.options.inputs = {kBuiltin};
  EXPECT_TRUE(throws_error([&] { t.open(); }, {"eval-data", "not with builtin"}));
}

TEST(PackedDataset, ShufflesEveryEpochAnew) {
  TestData t;
  t.file("a.txt", std::string(5 * 97, 'x'));
  t.options.order = DataOptions::Order::kShuffled;
  t.options.holdout = 0.1;
  const Data data = t.open();
  const auto& part = dynamic_cast<const PackedDataset&>(*data.training);
  const Index n = part.sequences();
  std::vector<std::vector<Index>> orders;
  for (Index epoch = 0; epoch < 3; ++epoch) {
    std::vector<Index> order;
    for (Index i = 0; i < n; ++i) order.push_back(part.in_stream(epoch * n + i));
    EXPECT_EQ(std::set<Index>(order.begin(), order.end()).size(), static_cast<std::size_t>(n)) << "each once";
    orders.push_back(order);
  }
  t.options.seed = 1;
  const Data other = t.open();
  std::vector<Index> order;
  for (Index i = 0; i < n; ++i) order.push_back(dynamic_cast<const PackedDataset&>(*other.training).in_stream(i));
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  EXPECT_NE(orders[0], order);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST(PackedDataset, HeldOutSequencesAreNoOthers) {
  for (const Index sequences : {2, 3, 9, 10, 11, 99, 100, 101, 1000})
    for (const double holdout : {0.001, 0.01, 0.1, 0.3, 0.5}) {
      TestData t;
      t.file("a.txt", std::string(static_cast<std::size_t>(5 * sequences - 2), 'x'));
      t.options.holdout = holdout;
      const Data data = t.open();
      std::set<Index> seen;
      for (const Dataset* part : {data.training.get(), data.held_out.get()}) {
        const auto& packed = dynamic_cast<const PackedDataset&>(*part);
        ASSERT_GT(packed.sequences(), 0);
        for (Index i = 0; i < packed.sequences(); ++i) EXPECT_TRUE(seen.insert(packed.in_stream(i)).second);
      }
      EXPECT_EQ(static_cast<Index>(seen.size()), sequences);
      EXPECT_EQ(*seen.rbegin(), sequences - 1);
      const double share = static_cast<double>(data.held_out->sequences()) / static_cast<double>(sequences);
      EXPECT_LE(share, 0.5);
      if (sequences == 1000) {
        EXPECT_NEAR(share, holdout, 0.2 * holdout);
      }
    }
}

TEST(PackedDataset, TooLittleDataSaysSo) {
  TestData t;
  t.file("a.txt", "ab");
  EXPECT_TRUE(throws_error([&] { t.open(); }, {"4 tokens", "sequence of 4"}, ErrorCode::kInvalidArgument));
  t.file("a.txt", "abc");
  t.options.holdout = 0.1;
  EXPECT_TRUE(throws_error([&] { t.open(); }, {"one sequence", "held"}, ErrorCode::kInvalidArgument));
  t.options.holdout = 0.6;
  EXPECT_TRUE(throws_error([&] { t.open(); }, {"0.6"}, ErrorCode::kInvalidArgument));
  t.options.holdout = 0;
  EXPECT_EQ(t.open().training->sequences(), 1);
  EXPECT_TRUE(
      throws_error([&] { open_dataset(t.options, t.tokenizer, 258); }, {"259", "258"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(throws_error([&] { t.open().training->batch(-1, 1); }, {"batch"}, ErrorCode::kInvalidArgument));
}

TEST(PackedDataset, LongTextsAreOneDocument) {
  TestData t;
  std::string text;  // of more than one part
  for (int i = 0; text.size() < 2'500'000; ++i) text += "line " + std::to_string(i) + "\n";
  t.file("a.txt", text);
  t.options.sequence_length = 1023;
  const Data data = t.open();
  EXPECT_EQ(data.report.documents, 1u);
  EXPECT_EQ(data.report.tokens, text.size() + 2) << "bos and eos once";
  std::string all;
  for (Index i = 0; i < data.training->sequences(); ++i) {
    const Batch batch = data.training->batch(i, 1);
    all += t.tokenizer.decode({batch.ids.data(), 1}) + t.tokenizer.decode(batch.targets);
  }
  EXPECT_TRUE(("<bos>" + text).starts_with(all));
  EXPECT_GT(all.size(), text.size() - 1024);
}

TEST(PackedDataset, TextWithNamesOfSpecialTokensIsText) {
  TestData t;
  t.file("a.txt", "<eos>x");
  const Data data = t.open();
  EXPECT_EQ(data.report.tokens, 8u);
  EXPECT_EQ(data.training->batch(0, 1).ids[0], kBos);
  EXPECT_NE(data.training->batch(0, 1).ids[1], kEos);
}

TEST(PackedDataset, IllFormedUtf8IsReplacedAsTheTokenizerDoes) {
  TestData t;
  t.file("a.txt", "a\xFF\xC3");
  EXPECT_EQ(t.open().report.tokens, 1u + 1 + 3 + 3 + 1);
  std::vector<std::int32_t> want = t.tokenizer.encode("a\uFFFD\uFFFD");
  want.resize(4);
  EXPECT_EQ(t.open().training->batch(0, 1).ids, want);
}

}  // namespace
}  // namespace dsmoe::train
