// The file config.json; ModelConfig::from_json and to_json are its text.
#pragma once

#include <filesystem>

#include "dsmoe/model_config.h"

namespace dsmoe {

ModelConfig read_config_json(const std::filesystem::path& file);

}  // namespace dsmoe
