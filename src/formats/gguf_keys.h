// Keys of a GGUF file's architecture that are not read: those that would change the model are refused by name, the rest is
// noted.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "dsmoe/model_config.h"
#include "io/gguf_metadata.h"

namespace dsmoe {

// `prefix`: the architecture's, as in "deepseek."; `read`: names behind it that the reader of the config knows.
// The decimal number that was meant: 1e-6 went through f32, and its shortest form there is 1e-6 again.
double gguf_decimal(const io::GgufMetadata& m, const std::string& name, double otherwise);

void check_gguf_keys(const io::GgufMetadata& metadata, std::string_view prefix, std::span<const std::string_view> read,
                     const ModelConfig& config);

}  // namespace dsmoe
