// A model as a Hugging Face folder: config.json, safetensors files, tokenizer.json.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/model_source.h"

namespace dsmoe {

std::unique_ptr<const ModelSource> open_folder_source(const std::filesystem::path& path);

}  // namespace dsmoe
