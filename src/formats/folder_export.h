// Writes a model as a Hugging Face folder, tensor by tensor.
#pragma once

#include <filesystem>
#include <optional>

#include "dsmoe/generation_config.h"
#include "dsmoe/model_config.h"
#include "dsmoe/tokenizer.h"
#include "formats/model_io.h"

namespace dsmoe {

class ModelSource;

// config.json and the weights, shard by shard. `progress` (may be empty) hears of bytes written so far and in all; `check`
// (may be empty) throws when the tensors that were given turn out to be wrong, before the model is there.
void save_model(const std::filesystem::path& folder, const ModelConfig& config, DType dtype, const TensorSource& tensor,
                std::uint64_t max_shard_bytes, const ByteProgress& progress = {}, const std::function<void()>& check = {});
// The same of a model in another place or format, without holding it.
void save_model(const std::filesystem::path& folder, const ModelSource& source, DType dtype, std::uint64_t max_shard_bytes,
                const ByteProgress& progress = {});

// generation_config.json (made from the config for a model that has none) and the tokenizer's files: what a folder has
// besides the weights and their config.
void write_companions(const std::filesystem::path& folder, const ModelConfig& config,
                      const std::optional<Tokenizer>& tokenizer, const GenerationConfig& generation = {});

}  // namespace dsmoe
