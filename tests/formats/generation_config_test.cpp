#include "formats/generation_config.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/log.h"
#include "io/gguf_metadata.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace dsmoe {
namespace {

using io::GgufMetadata;
using io::GgufValue;
using testing::throws_error;

GenerationConfig read(const std::string& text) { return GenerationConfig::from_json(text, "g.json"); }

TEST(GenerationConfig, ReadsWhatIsThere) {
  const GenerationConfig none = read("{}");
  EXPECT_TRUE(none.eos_token_id.empty());
  EXPECT_EQ(none.sampler().temperature, SamplerOptions().temperature);
  EXPECT_EQ(read(R"({"eos_token_id": 7})").eos_token_id, std::vector<Index>{7});
  EXPECT_EQ(read(R"({"eos_token_id": [7, 8]})").eos_token_id, (std::vector<Index>{7, 8}));
  EXPECT_EQ(read(R"({"temperature": 0.6, "do_sample": false})").sampler().temperature, 0) << "greedy";
  EXPECT_FLOAT_EQ(read(R"({"temperature": 0.6, "do_sample": true})").sampler().temperature, 0.6f);
  EXPECT_FLOAT_EQ(read(R"({"temperature": 0.6, "top_p": null})").sampler().temperature, 0.6f);
  EXPECT_EQ(read(R"({"top_k": -1})").sampler().top_k, 0) << "off, as some write it";
}

TEST(GenerationConfig, RefusesWithTheFieldsName) {
  EXPECT_TRUE(throws_error([] { read("[]"); }, {"g.json"}));
  EXPECT_TRUE(throws_error([] { read(R"({"eos_token_id": "x"})"); }, {"g.json", "eos_token_id"}));
  EXPECT_TRUE(throws_error([] { read(R"({"eos_token_id": [7, -5]})"); }, {"g.json", "eos_token_id is -5"}));
  EXPECT_TRUE(throws_error([] { read(R"({"temperature": -1})"); }, {"g.json", "temperature is -1"}));
  EXPECT_TRUE(throws_error([] { read(R"({"top_p": 2})"); }, {"g.json", "top_p is 2"}));
  EXPECT_TRUE(throws_error([] { read(R"({"top_k": -2})"); }, {"g.json", "top_k is -2"}));
  // A GGUF file could not hold them: it would say 5, infinity and 0.
  EXPECT_TRUE(throws_error([] { read(R"({"top_k": 4294967301})"); }, {"g.json", "top_k is 4294967301"}));
  EXPECT_TRUE(throws_error([] { read(R"({"temperature": 1e300})"); }, {"g.json", "temperature is 1e+300", "finite"}));
  EXPECT_TRUE(throws_error([] { read(R"({"top_p": 1e-60})"); }, {"g.json", "top_p is 1e-60", "over 0"}));
}

TEST(GenerationConfig, NoFileSaysNothing) {
  const testing::TempFolder dir;
  EXPECT_EQ(read_generation_config(dir / "generation_config.json").to_json(), "");
  std::ofstream(dir / "generation_config.json") << "{";
  EXPECT_TRUE(throws_error([&] { read_generation_config(dir / "generation_config.json"); }, {"generation_config.json"}));
}

TEST(GenerationConfig, SaysWhichFieldsHaveNoEffect) {
  const testing::TempFolder dir;
  std::vector<std::string> notes;
  set_log_sink([&](std::string_view topic, std::string_view line) {
    if (topic == kNoteTopic) notes.emplace_back(line);
  });
  const auto write = [&](const char* text) {
    notes.clear();
    std::ofstream(dir / "generation_config.json") << text;
    read_generation_config(dir / "generation_config.json");
  };
  write(R"({"num_beams": 1, "typical_p": 1.0, "bad_words_ids": null, "min_length": 0, "max_length": 20, "top_k": 5})");
  EXPECT_TRUE(notes.empty()) << "they ask for nothing";
  write(R"({"num_beams": 4, "no_repeat_ngram_size": 3, "stop_strings": ["x"], "temperature": 0.5})");
  set_log_sink({});
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("no effect here: num_beams, no_repeat_ngram_size, stop_strings"), std::string::npos) << notes[0];
}

TEST(GenerationConfig, ThroughGgufToTheByte) {
  const std::string text =
      "{\"temperature\": 0.7,\n \"top_p\": 0.95, \"top_k\": 20, \"eos_token_id\": [1, 2], \"x\": 1.50}\n";
  GgufMetadata m;
  put_generation_config(read(text), m);
  EXPECT_FLOAT_EQ(static_cast<float>(m.number("general.sampling.temp")), 0.7f);
  EXPECT_EQ(m.integer("general.sampling.top_k"), 20);
  ModelConfig config;
  EXPECT_EQ(generation_config_from_gguf(m, config).to_json(), text);
  // Edited, the format's own keys win, and the rest stays.
  m.set("general.sampling.temp", GgufValue::f32(0.3f));
  m.set("general.sampling.min_p", GgufValue::f32(0.1f));
  m.set("tokenizer.ggml.eot_token_id", GgufValue::u32(9));
  const GenerationConfig edited = generation_config_from_gguf(m, config);
  EXPECT_FLOAT_EQ(edited.sampler().temperature, 0.3f);
  EXPECT_FLOAT_EQ(edited.sampler().min_p, 0.1f);
  EXPECT_FLOAT_EQ(edited.sampler().top_p, 0.95f);
  EXPECT_EQ(edited.eos_token_id, (std::vector<Index>{1, 2, 9}));
  const GenerationConfig again = read(edited.to_json());
  EXPECT_EQ(again.temperature, 0.3) << "the number that was meant";
  EXPECT_EQ(again.eos_token_id, edited.eos_token_id);
  EXPECT_NE(edited.to_json().find("\"x\": 1.5"), std::string::npos);
}

TEST(GenerationConfig, GreedyIsTemperatureZeroThere) {
  GgufMetadata m;
  const std::string text = R"({"do_sample": false, "temperature": 0.7})";
  put_generation_config(read(text), m);
  EXPECT_EQ(m.number("general.sampling.temp"), 0);
  EXPECT_EQ(generation_config_from_gguf(m, {}).to_json(), text);
  m.set("general.sampling.temp", GgufValue::f32(0.5f));
  EXPECT_FLOAT_EQ(generation_config_from_gguf(m, {}).sampler().temperature, 0.5f);
}

// A file of another program: no copy of the JSON file in it.
TEST(GenerationConfig, FromTheFormatsKeysAlone) {
  GgufMetadata m;
  ModelConfig config;
  config.eos_token_id = {4};
  EXPECT_EQ(generation_config_from_gguf(m, config).to_json(), "");
  m.set("tokenizer.ggml.eot_token_id", GgufValue::u32(4));
  EXPECT_TRUE(generation_config_from_gguf(m, config).eos_token_id.empty()) << "the config has it already";
  m.set("tokenizer.ggml.eom_token_id", GgufValue::u32(5));
  EXPECT_EQ(generation_config_from_gguf(m, config).eos_token_id, (std::vector<Index>{4, 5}));
}

}  // namespace
}  // namespace dsmoe
