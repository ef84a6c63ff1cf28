// What a model's folder has besides config.json and the weights.
#pragma once

#include <filesystem>
#include <optional>

#include "dsmoe/generation_config.h"
#include "dsmoe/model_config.h"
#include "dsmoe/tokenizer.h"

namespace dsmoe::train {

// generation_config.json, and the tokenizer's files if there is one.
void write_companions(const std::filesystem::path& folder, const ModelConfig& config,
                      const std::optional<Tokenizer>& tokenizer, const GenerationConfig& generation = {});

}  // namespace dsmoe::train
