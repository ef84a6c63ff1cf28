// TrainOptions as JSON: how a checkpoint keeps them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "dsmoe/train_options.h"

namespace dsmoe::train {

nlohmann::ordered_json to_json(const TrainOptions& options);
// Fields that are missing keep their defaults. `where` begins every message.
TrainOptions options_from_json(const nlohmann::ordered_json& object, const std::string& where);

}  // namespace dsmoe::train
