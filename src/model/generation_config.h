// generation_config.json: the special tokens of a model, where other tools look for them.
#pragma once

#include <string>

#include "dsmoe/model_config.h"

namespace dsmoe {

std::string generation_config_json(const ModelConfig& config);

}  // namespace dsmoe
