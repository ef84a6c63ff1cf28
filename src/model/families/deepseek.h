// DeepSeekMoE as published: model_type "deepseek".
#pragma once

#include "model/families/family.h"

namespace dsmoe {

Family deepseek_family();

}  // namespace dsmoe
