// Configs of known sizes; ModelConfig::preset() has the list.
#pragma once

#include "dsmoe/model_config.h"

namespace dsmoe {

// presets_families.cpp: as released.
ModelConfig qwen3_30b_a3b();
ModelConfig qwen3_235b_a22b();
ModelConfig glm_4_5_air();
ModelConfig glm_4_5();
ModelConfig olmoe_1b_7b();
ModelConfig mixtral_8x7b();
ModelConfig mixtral_8x22b();
ModelConfig ernie_4_5_21b_a3b();
ModelConfig minimax_m2();
ModelConfig dots_llm1();
ModelConfig hunyuan_a13b();
ModelConfig qwen1_5_moe_a2_7b();
ModelConfig qwen2_57b_a14b();
ModelConfig deepseek_v2_lite();
ModelConfig deepseek_v2();
ModelConfig deepseek_v3();  // and R1
ModelConfig moonlight_16b_a3b();
ModelConfig kimi_k2();
ModelConfig glm_4_7_flash();

}  // namespace dsmoe
