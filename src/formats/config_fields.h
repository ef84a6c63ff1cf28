// Fields of a config.json beyond those of ModelConfig. Some change what a model computes, and it would be silently wrong
// without them: they are refused by name unless they say nothing. What is left is noted.
#pragma once

#include <string>
#include <vector>

#include "core/json_read.h"
#include "dsmoe/model_config.h"

namespace dsmoe {

// Throws for the first field that would change the model, which `config` was read from. `known`: names that are read for
// the model's family, which are not refused.
void refuse_fields(const json_read::OrderedJson& object, const ModelConfig& config, const std::vector<std::string>& known);

// Takes out of a file that is written with changes what restated a field as it was before, and would now contradict it.
void drop_outdated_fields(json_read::OrderedJson& object, const ModelConfig& before, const ModelConfig& now,
                          const std::vector<std::string>& known);

// Names in the file that no part of this library knows, in the file's order.
std::vector<std::string> unknown_fields(const json_read::OrderedJson& object, const std::vector<std::string>& known);

}  // namespace dsmoe
