// What a Model holds: for the library's own files that work below the public API.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "dsmoe/model.h"
#include "model/transformer.h"

namespace dsmoe {

struct Model::Impl {
  std::shared_ptr<Transformer> transformer;  // a training run's own, for the model of one
  std::optional<Tokenizer> tokenizer;
  GenerationConfig generation;
  std::filesystem::path path;
  std::shared_ptr<const parallel::Mesh> mesh;  // the ranks over which load() has spread it; null for one that is not
};

// The tokens that end a text of this model: those of generation_config.json, else of config.json, and the tokenizer's.
std::vector<std::int32_t> end_tokens(const Model& model);

// Throws when there is no model at the path, in the same words whatever is read first.
void require_model(const std::filesystem::path& path);

}  // namespace dsmoe
