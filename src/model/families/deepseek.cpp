// DeepSeekMoE as published: model_type "deepseek".
#include "model/families/common.h"

namespace dsmoe {

namespace {

ModelSpec deepseek_spec(const ModelConfig& c) {
  GqaSpec attention = attention_spec(c);
  attention.bias = attention.output_bias = c.attention_bias;
  return model_spec(c, attention);
}

}  // namespace

Family deepseek_family() {
  return {.model_type = "deepseek",
          .architecture = "DeepseekForCausalLM",
          .check = check_usual,
          .spec = deepseek_spec,
          .names = kUsualNames,
          .yarn = false,
          .title = "DeepSeekMoE"};
}

}  // namespace dsmoe
