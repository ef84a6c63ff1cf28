// What families have in common, and the list of them: most differ in a flag or two, in names and in defaults.
#pragma once

#include "model/families/family.h"

namespace dsmoe {

// Names as most checkpoints have them: Hugging Face's Llama with the experts of DeepSeekMoE.
extern const std::span<const RoleName> kUsualNames;

// Throws for values that fields may have elsewhere and that are not implemented: activations, biases of experts, ways of
// scoring and choosing.
void check_usual(const ModelConfig& config);

// The same for families whose references normalise the weight of one chosen expert to 1, which MoeConfig does not.
void check_family(const ModelConfig& config);

GqaSpec attention_spec(const ModelConfig& config);           // heads and their sizes; without biases and norms
MoeConfig moe_spec(const ModelConfig& config, Index layer);  // as the fields of DeepSeekMoE say
// All layers with this attention; those that config.is_moe_layer() with moe_spec(), the others dense.
ModelSpec model_spec(const ModelConfig& config, const AttentionSpec& attention);

// Of families with latent attention: what all of them check, and those with sigmoid scores; and a family, which differs
// from the others in what is given here.
void check_latent(const ModelConfig& config);
void check_sigmoid_latent(const ModelConfig& config);
Family latent_family(std::string_view model_type, std::string_view architecture, std::string_view title,
                     void (*check)(const ModelConfig&), ModelConfig (*defaults)());

Family deepseek_family();
Family qwen3_moe_family();
Family glm4_moe_family();
Family olmoe_family();
Family mixtral_family();
Family ernie4_5_moe_family();
Family minimax_m2_family();
Family dots1_family();
Family qwen2_moe_family();
Family deepseek_v2_family();
Family deepseek_v3_family();
Family kimi_k2_family();
Family glm4_moe_lite_family();
Family hunyuan_v1_moe_family();

}  // namespace dsmoe
