// rope_scaling of a config.json, and rope_parameters, which newer versions of transformers write in its place.
#pragma once

#include "core/json_read.h"
#include "model/families/family.h"

namespace dsmoe {

// What a family's reference does not do is refused. `name` is that of the field.
RopeScaling read_rope_scaling(const char* name, const json_read::OrderedJson& v, const Family& family);
json_read::OrderedJson rope_scaling_value(const RopeScaling& scaling);

// Dynamic scaling is by max_position_embeddings, as in the reference; newer files may say another length beside it.
void check_original_length(const char* name, const json_read::OrderedJson& scaling, const ModelConfig& config);

}  // namespace dsmoe
