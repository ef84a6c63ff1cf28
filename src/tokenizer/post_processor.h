// Which ids stand before and after those of the text: the "post_processor" of tokenizer.json and what
// tokenizer_config.json makes of it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "tokenizer/vocab.h"

namespace dsmoe {

struct Frame {
  std::vector<std::int32_t> prefix, suffix;
  bool from_template = false;  // a TemplateProcessing said so
};

Frame read_post_processor(const nlohmann::json& description, const Vocab& vocab);

}  // namespace dsmoe
