// A model as a Hugging Face folder: config.json, safetensors files, tokenizer.json.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "formats/model_source.h"

namespace dsmoe {

// What to do about a folder whose tokenizer is in a file that is not read, such as SentencePiece's; "" where there is none.
std::string unread_tokenizer(const std::filesystem::path& folder);

std::unique_ptr<const ModelSource> open_folder_source(const std::filesystem::path& path);

}  // namespace dsmoe
