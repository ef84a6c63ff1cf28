#include "dsmoe/convert.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsmoe/evaluate.h"
#include "dsmoe/inspect.h"
#include "dsmoe/plan.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"
#include "train/corpus/builtin_tokenizer.h"

namespace dsmoe {
namespace {

using testing::TempFolder;
using testing::throws_error;

std::shared_ptr<Model> convert_model() {
  ModelConfig c = ModelConfig::preset("tiny");
  c.num_hidden_layers = 2;
  return Model::random(c, 1, DType::kF32, train::builtin_tokenizer(512));
}

const TokenSequences kText = {{5, 6, 7, 8, 9, 10}};
double loss_of(const std::filesystem::path& path) { return evaluate(*Model::load(path), kText).loss_sum; }

TEST(ApiConvert, ThereAndBackIsTheSameModel) {
  const TempFolder folder;
  convert_model()->save(folder.path() / "model");
  const Converted file = convert(folder.path() / "model", folder.path() / "model.gguf");
  EXPECT_EQ(file.type, "f32");
  EXPECT_GT(file.parameters, 0);
  std::uint64_t begun = 0, last = 0;
  ConvertOptions options{.begin = [&](std::uint64_t bytes) { begun = bytes; }};
  options.progress = [&](std::uint64_t done, std::uint64_t) { last = done; };
  const Converted back = convert(folder.path() / "model.gguf", folder.path() / "back", options);
  EXPECT_EQ(back.parameters, file.parameters);
  EXPECT_EQ(begun, back.bytes);
  EXPECT_GT(last, 0u);
  EXPECT_EQ(loss_of(folder.path() / "model"), loss_of(folder.path() / "back"));
  const Converted small = convert(folder.path() / "model", folder.path() / "q8.gguf", {.type = "q8_0"});
  EXPECT_LT(small.bytes, file.bytes / 2);
  EXPECT_NE(loss_of(folder.path() / "model"), loss_of(folder.path() / "q8.gguf"));
}

TEST(ApiConvert, ReplacesNothingUnasked) {
  const TempFolder folder;
  convert_model()->save(folder.path() / "model");
  convert(folder.path() / "model", folder.path() / "a.gguf");
  EXPECT_TRUE(throws_error([&] { convert(folder.path() / "model", folder.path() / "a.gguf"); }, {"already there"}));
  EXPECT_NO_THROW(convert(folder.path() / "model", folder.path() / "a.gguf", {.overwrite = true}));
  EXPECT_TRUE(throws_error([&] { convert(folder.path() / "a.gguf", folder.path() / "model"); }, {"already holds a model"}));
  EXPECT_TRUE(throws_error([&] { convert(folder.path() / "model", folder.path() / "b", {.type = "q8_0"}); }, {".gguf"}));
  EXPECT_TRUE(throws_error([&] { convert(folder.path() / "nothing", folder.path() / "b"); }, {"there is no model"}));
}

TEST(ApiConvert, AnExceptionOfTheCallbackLeavesNothingBehind) {
  const TempFolder folder;
  convert_model()->save(folder.path() / "model");
  ConvertOptions options;
  options.progress = [](std::uint64_t, std::uint64_t) { throw std::logic_error("enough"); };
  EXPECT_THROW(convert(folder.path() / "model", folder.path() / "a.gguf", options), std::logic_error);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "a.gguf"));
}

TEST(ApiPlan, TakesAPresetAConfigOrNumbers) {
  using nlohmann::json;
  const json preset = json::parse(plan_json({.preset = "deepseek-moe-16b"}));
  const json text = json::parse(plan_json({.config_json = ModelConfig::preset("deepseek-moe-16b").to_json()}));
  EXPECT_EQ(preset.at("parameters"), text.at("parameters"));
  EXPECT_EQ(json::parse(plan_json({.experts = 16, .active = 2, .split = 4, .shared = 1})).at("scope"), "counts");
  EXPECT_TRUE(throws_error([&] { plan_json({}); }, {"one of preset, config and experts"}));
  EXPECT_TRUE(throws_error([&] { plan_json({.preset = "tiny", .context = -1}); }, {"context"}));
}

TEST(ApiInspect, ReportsTheLoadOfEveryExpert) {
  const std::shared_ptr<Model> model = convert_model();
  const InspectReport report = inspect(*model, {.data = {"builtin"}, .limit = 64, .threads = 1, .name = "mine"});
  const auto j = nlohmann::json::parse(report.json);
  ASSERT_EQ(j.at("layers").size(), static_cast<std::size_t>(model->config().moe_layers()));
  EXPECT_EQ(j.at("layers")[0].at("load").size(), static_cast<std::size_t>(model->config().routed_experts()));
  EXPECT_NE(report.html.find("Routing of mine"), std::string::npos);
  EXPECT_NE(report.csv.find("layer"), std::string::npos);
  EXPECT_TRUE(throws_error([&] { inspect(*model, {}); }, {"data is empty"}));
}

}  // namespace
}  // namespace dsmoe
