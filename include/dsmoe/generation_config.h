// What a model's makers say about generating with it: the file generation_config.json of a Hugging Face folder, or the keys
// of a GGUF file. These are defaults: options that a caller gives win.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/generate_options.h"

namespace dsmoe {

// Fields are named as in the file; those that it does not have are unset.
struct GenerationConfig {
  std::vector<Index> eos_token_id;  // tokens that end a text, in place of config.json's; empty: none given
  std::optional<bool> do_sample;    // false: greedy decoding
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<Index> top_k;

  std::string source_json;  // the text it was read from: to_json keeps its other fields

  // `source` names the text in errors. Values that no sampler takes are refused by name.
  static GenerationConfig from_json(std::string_view text, const std::string& source);
  // The text it was read from where that still says the same; "" for one that says nothing.
  std::string to_json() const;

  // The library's defaults, changed by the fields that are set; greedy decoding is temperature 0.
  SamplerOptions sampler() const;
};

}  // namespace dsmoe
