#include "train/options.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/options.h"
#include "support/expect_error.h"

namespace dsmoe::train {
namespace {

// The "options" of a run.json that an earlier version wrote.
constexpr const char* kOld = R"({
  "data": ["builtin"], "field": "text", "label-by": "file", "label-field": "domain", "order": "sequential",
  "holdout": 0.01, "strict": false, "seq-len": 16, "seed": 0, "steps": 2, "schedule-steps": 5, "batch-size": 1,
  "grad-accum": 1, "lr": 0.001, "lr-schedule": "cosine", "warmup-steps": 20, "weight-decay": 0.1, "clip": 0.5,
  "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-08, "bias-update-speed": 0.0, "dtype": "bf16", "recompute": false,
  "freeze": ["*norm*"], "lora-rank": 0, "lora-alpha": 0.0, "eval-every": 100, "eval-sequences": 2, "save-every": 200,
  "keep": 1
})";

TEST(TrainOptionsJson, OldFilesAreReadAndWrittenAlike) {
  nlohmann::ordered_json old = nlohmann::ordered_json::parse(kOld);
  const TrainOptions o = options_from_json(old, "run.json");
  EXPECT_EQ(o.lr_schedule, LrSchedule::kCosine);
  EXPECT_EQ(o.order, Order::kSequential);
  EXPECT_EQ(o.label_by, LabelBy::kFile);
  EXPECT_EQ(o.dtype, DType::kBF16);
  EXPECT_EQ(o.freeze, std::vector<std::string>{"*norm*"});
  nlohmann::ordered_json now = to_json(o);
  EXPECT_EQ(now.erase("eval-data"), 1u) << "is newer than the file";
  old["recompute"] = true;  // a flag then
  EXPECT_EQ(options_from_json(old, "run.json").recompute, Recompute::kBlock);
  old["recompute"] = "none";
  EXPECT_EQ(now.dump(), old.dump()) << "the same fields in the same order";
}

TEST(TrainOptionsJson, RefusesWhatItDoesNotKnow) {
  const auto read = [](const char* text) { options_from_json(nlohmann::ordered_json::parse(text), "run.json"); };
  EXPECT_TRUE(testing::throws_error([&] { read(R"({"lr-schedule": "steep"})"); },
                                    {"run.json", "lr-schedule is 'steep'", "paper, cosine or constant"}));
  EXPECT_TRUE(testing::throws_error([&] { read(R"({"steps": "many"})"); }, {"run.json", "'steps' must be a whole number"}));
  // Nothing is rounded or converted, and a foreign text cannot make two lines of the message.
  EXPECT_TRUE(testing::throws_error([&] { read(R"({"steps": 1.5})"); }, {"run.json", "'steps'", "found 1.5"}));
  EXPECT_TRUE(testing::throws_error([&] { read(R"({"seed": -1})"); }, {"run.json", "'seed'", "at least 0"}));
  EXPECT_TRUE(testing::throws_error([&] { read(R"({"dtype": "a\nb"})"); }, {"run.json", "dtype", "expected"}));
  EXPECT_TRUE(testing::throws_error([&] { read(R"({"dtype": 3})"); }, {"run.json", "'dtype' must be a string"}));
  EXPECT_TRUE(testing::throws_error([&] { read("[]"); }, {"run.json", "not a JSON object"}));
  EXPECT_EQ(options_from_json(nlohmann::ordered_json::object(), "").steps, TrainOptions().steps) << "missing: the default";
}

TEST(TrainOptions, ValidationNamesOptionsAsTheyAreDeclared) {
  TrainOptions o;
  EXPECT_NO_THROW(o.validate());
  o.batch_size = 0;
  EXPECT_TRUE(testing::throws_error([&] { o.validate(); }, {"batch-size is 0; it must be at least 1"}));
  o = {};
  o.beta2 = 1;
  EXPECT_TRUE(testing::throws_error([&] { o.validate(); }, {"beta2 is 1; it must be under 1"}));
  o = {};
  o.dtype = DType::kF16;
  EXPECT_TRUE(testing::throws_error([&] { o.validate(); }, {"dtype", "f32 or bf16"}));
}

// Counts the fields of an aggregate: the most values that can initialise it.
struct Anything {
  template <class T>
  operator T() const {
    return T();
  }
};
template <class T, class... Values>
constexpr std::size_t fields() {
  if constexpr (requires { T{Values{}..., Anything{}}; })
    return fields<T, Values..., Anything>();
  else
    return sizeof...(Values);
}
template <class Options>
std::size_t declared() {
  std::size_t n = 0;
  const Options options;
  Options::visit(options, [&](const auto&, const OptionInfo&) { ++n; });
  return n;
}

TEST(TrainOptions, EveryFieldIsDeclared) {
  EXPECT_EQ(declared<TrainOptions>(), fields<TrainOptions>());
  EXPECT_EQ(declared<BalanceOptions>(), fields<BalanceOptions>());
}

struct OneForgotten {
  int a = 0, b = 0;
  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.a, {"a", ""});
  }
};

TEST(TrainOptions, TheCountOfFieldsCanFail) {
  EXPECT_EQ(declared<OneForgotten>(), 1u);
  EXPECT_EQ(fields<OneForgotten>(), 2u);
}

}  // namespace
}  // namespace dsmoe::train
