// generation_config.json, and the same in the keys of a GGUF file.
#include "formats/generation_config.h"

#include <algorithm>
#include <fstream>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/log.h"
#include "io/gguf_metadata.h"

namespace dsmoe {

namespace {

using Json = json_read::OrderedJson;
using io::GgufMetadata;
using io::GgufValue;

constexpr double kMostTopK = 1 << 30;  // fits the u32 of a GGUF file, and no vocabulary has as many tokens
constexpr std::size_t kMaxGenerationBytes = std::size_t{1} << 20;
constexpr const char* kGenerationJson = "dsmoe.generation_config_json";
// End of turn and end of message: llama.cpp ends a text at them as at eos.
constexpr const char* kEndKeys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};

// The numbers of a sampler, with the keys that llama.cpp has for them in GGUF files and the range that a sampler takes.
struct Number {
  const char *name, *key;
  std::optional<double> GenerationConfig::*field;
  OptionRange range;
};

const std::vector<Number>& numbers() {
  static const std::vector<Number> all = {
      {"temperature", "general.sampling.temp", &GenerationConfig::temperature, at_least(0)},
      {"top_p", "general.sampling.top_p", &GenerationConfig::top_p, over(0).at_most(1)},
      {"min_p", "general.sampling.min_p", &GenerationConfig::min_p, at_least(0).at_most(1)},
      {"repetition_penalty", "general.sampling.penalty_repeat", &GenerationConfig::repetition_penalty, over(0)},
  };
  return all;
}

// As the f32 that a sampler and a GGUF file have: 1e300 is infinite there.
void check(const std::string& where, const char* field, double value, const OptionRange& range) {
  if (const std::string refusal = range.refusal(static_cast<float>(value)); !refusal.empty())
    fail(ErrorCode::kFormat, "{}: {} is {}; {}", where, field, value, refusal);
}

// Fields that change the text and that nothing here does, with the values that ask for nothing; null always does.
struct Ignored {
  const char* name;
  std::vector<Json> neutral;
};

const std::vector<Ignored>& ignored() {
  static const std::vector<Ignored> all = {{"num_beams", {1}},
                                           {"no_repeat_ngram_size", {0}},
                                           {"typical_p", {1}},
                                           {"penalty_alpha", {0}},
                                           {"epsilon_cutoff", {0}},
                                           {"eta_cutoff", {0}},
                                           {"diversity_penalty", {0}},
                                           {"encoder_repetition_penalty", {1}},
                                           {"min_length", {0}},
                                           {"min_new_tokens", {0}},
                                           {"guidance_scale", {1}},
                                           {"bad_words_ids", {Json::array()}},
                                           {"suppress_tokens", {Json::array()}},
                                           {"begin_suppress_tokens", {Json::array()}},
                                           {"sequence_bias", {Json::array(), Json::object()}},
                                           {"stop_strings", {Json::array()}},
                                           {"forced_bos_token_id", {}},
                                           {"forced_eos_token_id", {}},
                                           {"exponential_decay_length_penalty", {}},
                                           {"watermarking_config", {}}};
  return all;
}

void note_ignored(const Json& file, const std::string& source) {
  std::string names;
  for (const Ignored& field : ignored()) {
    const Json* value = json_read::find(file, field.name);
    if (!value || std::find(field.neutral.begin(), field.neutral.end(), *value) != field.neutral.end()) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", field.name);
  }
  if (!names.empty()) note("{}: fields that have no effect here: {}", source, names);
}

// -1 is how some programs write "off".
Index checked_top_k(const std::string& where, Index top_k) {
  if (top_k == -1) return 0;
  check(where, "top_k", static_cast<double>(top_k), at_least(0).at_most(kMostTopK));
  return top_k;
}

// 0.7 went through f32; its shortest form there is 0.7 again.
double decimal(double value) { return std::stod(fmt::format("{}", static_cast<float>(value))); }

// What a GGUF file says for it: greedy decoding is temperature 0 there.
GenerationConfig as_stored(GenerationConfig c) {
  if (c.do_sample == false) c.temperature = 0;
  return c;
}

Json ids_value(const std::vector<Index>& ids) { return ids.size() == 1 ? Json(ids.front()) : Json(ids); }

}  // namespace

GenerationConfig GenerationConfig::from_json(std::string_view text, const std::string& source) {
  const Json file = json_read::parse_object<Json>(text, source);
  GenerationConfig c;
  if (const Json* ids = json_read::find(file, "eos_token_id"))
    c.eos_token_id = ids->is_array() ? json_read::as<std::vector<Index>>(*ids, "eos_token_id", source)
                                     : std::vector{json_read::as<Index>(*ids, "eos_token_id", source)};
  for (const Index id : c.eos_token_id)
    if (id < 0) fail(ErrorCode::kFormat, "{}: eos_token_id is {}; it cannot be negative, null means none", source, id);
  if (json_read::find(file, "do_sample")) c.do_sample = json_read::get<bool>(file, "do_sample", source);
  for (const Number& n : numbers()) {
    if (!json_read::find(file, n.name)) continue;
    c.*n.field = json_read::get<double>(file, n.name, source);
    check(source, n.name, *(c.*n.field), n.range);
  }
  if (json_read::find(file, "top_k")) c.top_k = checked_top_k(source, json_read::get<Index>(file, "top_k", source));
  c.source_json = text;
  return c;
}

std::string GenerationConfig::to_json() const {
  const GenerationConfig was = source_json.empty() ? GenerationConfig() : from_json(source_json, "generation_config.json");
  Json file = source_json.empty() ? Json::object() : json_read::parse<Json>(source_json, "generation_config.json");
  bool changed = false;
  const auto put = [&](const char* name, const auto& value, const auto& before, const Json& text) {
    if (value == before) return;
    file[name] = text;
    changed = true;
  };
  put("eos_token_id", eos_token_id, was.eos_token_id, ids_value(eos_token_id));
  put("do_sample", do_sample, was.do_sample, do_sample ? Json(*do_sample) : Json());
  put("top_k", top_k, was.top_k, top_k ? Json(*top_k) : Json());
  for (const Number& n : numbers())
    put(n.name, this->*n.field, was.*n.field, this->*n.field ? Json(*(this->*n.field)) : Json());
  return changed ? file.dump(2) + "\n" : source_json;
}

SamplerOptions GenerationConfig::sampler() const {
  SamplerOptions o;
  const auto take = [](float& to, const std::optional<double>& value) {
    if (value) to = static_cast<float>(*value);
  };
  take(o.temperature, temperature);
  take(o.top_p, top_p);
  take(o.min_p, min_p);
  take(o.repetition_penalty, repetition_penalty);
  if (top_k) o.top_k = *top_k;
  if (do_sample == false) o.temperature = 0;
  return o;
}

GenerationConfig read_generation_config(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  std::ifstream in(file, std::ios::binary);
  std::string text(kMaxGenerationBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || !in.is_open()) fail(ErrorCode::kIo, "cannot read {}; is it a file that you may read?", file.string());
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMaxGenerationBytes)
    fail(ErrorCode::kFormat, "{} is larger than {} bytes, not a generation_config.json", file.string(),
         kMaxGenerationBytes);
  GenerationConfig config = GenerationConfig::from_json(text, file.string());
  note_ignored(json_read::parse<Json>(text, file.string()), file.string());
  return config;
}

void put_generation_config(const GenerationConfig& c, GgufMetadata& m) {
  const GenerationConfig stored = as_stored(c);
  for (const Number& n : numbers())
    if (stored.*n.field) m.set(n.key, GgufValue::f32(static_cast<float>(*(stored.*n.field))));
  if (c.top_k) m.set("general.sampling.top_k", GgufValue::u32(static_cast<std::uint32_t>(*c.top_k)));
  if (const std::string text = c.to_json(); !text.empty()) m.set(kGenerationJson, GgufValue::string(text));
}

void put_end_tokens(const std::vector<Index>& ids, const std::optional<Tokenizer>& tokenizer, GgufMetadata& m) {
  if (!tokenizer) return;
  std::vector<Index> others;
  for (const Index id : ids)
    if (id >= 0 && id < tokenizer->vocab_size() && id != tokenizer->eos_id().value_or(-1)) others.push_back(id);
  for (std::size_t i = 0; i < std::min(others.size(), std::size(kEndKeys)); ++i)
    m.set(kEndKeys[i], GgufValue::u32(static_cast<std::uint32_t>(others[i])));
}

GenerationConfig generation_config_from_gguf(const GgufMetadata& m, const ModelConfig& config) {
  GenerationConfig c;
  if (m.contains(kGenerationJson))
    c = GenerationConfig::from_json(m.text(kGenerationJson), m.where() + ": " + kGenerationJson);
  // Where the file was edited, or has nothing else, the format's own keys count.
  const GenerationConfig stored = as_stored(c);
  for (const Number& n : numbers()) {
    if (!m.contains(n.key)) continue;
    const double value = m.number(n.key);
    check(m.where(), n.key, value, n.range);
    if (stored.*n.field && static_cast<float>(*(stored.*n.field)) == static_cast<float>(value)) continue;
    c.*n.field = decimal(value);
    if (n.field == &GenerationConfig::temperature && c.do_sample) c.do_sample = value > 0;
  }
  if (m.contains("general.sampling.top_k")) c.top_k = checked_top_k(m.where(), m.integer("general.sampling.top_k"));
  std::vector<Index> ends = c.eos_token_id.empty() ? config.eos_token_id : c.eos_token_id;
  for (const char* key : kEndKeys) {
    if (!m.contains(key) || std::find(ends.begin(), ends.end(), m.integer(key)) != ends.end()) continue;
    ends.push_back(m.integer(key));
    c.eos_token_id = ends;
  }
  return c;
}

}  // namespace dsmoe
