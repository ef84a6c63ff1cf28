// Writes a model as a Hugging Face folder, tensor by tensor.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/generation_config.h"
#include "dsmoe/model_config.h"
#include "dsmoe/tokenizer.h"
#include "formats/model_io.h"
#include "io/file_place.h"

namespace dsmoe {

class ModelSource;

// The names of files in a folder that belong to a model and that a save replaces or removes: config.json, the weights under
// the names that we give them, and what write_companions() writes. Sorted.
std::vector<std::string> model_files(const std::filesystem::path& folder);

// What a folder has besides the weights and their config. Without a generation config one is made from the config.
struct Companions {
  std::optional<Tokenizer> tokenizer = {};
  GenerationConfig generation = {};
};

// The weights shard by shard, config.json and companions. `progress` (may be empty) hears of bytes written so far and in
// all. A model that is in the folder stays until all of the new one is on the disk, and then no file of it is left; files
// that are none of model_files() are never touched. Between the two the folder has no config.json for a moment, so that
// files of both are not taken for one model: killed there, the texts of both are in kUnfinishedModel. `check` (may be
// empty) throws when the tensors that were given turn out to be wrong, before any of that.
void save_model(const std::filesystem::path& folder, const ModelConfig& config, DType dtype, const TensorSource& tensor,
                std::uint64_t max_shard_bytes, const ByteProgress& progress = {}, const Companions& companions = {},
                const std::function<void()>& check = {});
// The same, but others write the tensors: `fill` gets the place of each one of parameter_list(), and returns when all are
// on the disk.
using FillPlaces = std::function<void(const std::vector<io::FilePlace>& places)>;
void save_model(const std::filesystem::path& folder, const ModelConfig& config, DType dtype, const FillPlaces& fill,
                std::uint64_t max_shard_bytes);
// A parameter as such a file has it.
Tensor in_file(const ModelConfig& config, const Parameter& parameter, const Tensor& tensor, DType dtype);

// The same of a model in another place or format, without holding it, with its companions.
void save_model(const std::filesystem::path& folder, const ModelSource& source, DType dtype, std::uint64_t max_shard_bytes,
                const ByteProgress& progress = {});

inline constexpr const char* kUnfinishedModel = ".unfinished-model";  // a folder in the model's

// generation_config.json and the tokenizer's files.
void write_companions(const std::filesystem::path& folder, const ModelConfig& config,
                      const std::optional<Tokenizer>& tokenizer, const GenerationConfig& generation = {});

}  // namespace dsmoe
