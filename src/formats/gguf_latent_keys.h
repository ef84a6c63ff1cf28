// The keys of latent attention (MLA) and of YaRN in a GGUF file. Its readers see one head of keys and values as wide as
// what is cached of a token; the sizes of real heads have keys of their own.
#pragma once

#include <span>
#include <string_view>

#include "dsmoe/model_config.h"
#include "formats/gguf_keys.h"
#include "io/gguf.h"

namespace dsmoe {

std::span<const std::string_view> latent_gguf_keys();  // all that are read here, without the prefix

void put_latent_keys(const ModelConfig& config, const std::string& prefix, io::GgufMetadata& metadata);
void read_latent_keys(const io::GgufFile& file, const std::string& prefix, ModelConfig& config);

// Of rope.scaling.type "yarn". A file says mscale_all_dim; mscale is the same, and the rest is as the formula has it.
void put_yarn_keys(const RopeScaling& scaling, const std::string& prefix, io::GgufMetadata& metadata);
RopeScaling read_yarn_keys(const io::GgufMetadata& metadata, const std::string& prefix, double factor);
const char* why_yarn_is_not_carried(const RopeScaling& scaling);  // null: it is

}  // namespace dsmoe
