// generation_config.json as a file and as keys of a GGUF file; GenerationConfig::from_json and to_json are its text.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "dsmoe/generation_config.h"
#include "dsmoe/model_config.h"
#include "dsmoe/tokenizer.h"

namespace dsmoe::io {
class GgufMetadata;
}

namespace dsmoe {

GenerationConfig read_generation_config(const std::filesystem::path& file);  // says nothing where there is no file

// The keys that llama.cpp reads (general.sampling.*), and the file's text under a key of our own.
void put_generation_config(const GenerationConfig& generation, io::GgufMetadata& metadata);
// The format has one eos token, the tokenizer's. Up to two more tokens that end a text go to the keys for the end of a turn
// and of a message.
void put_end_tokens(const std::vector<Index>& ids, const std::optional<Tokenizer>& tokenizer, io::GgufMetadata& metadata);
GenerationConfig generation_config_from_gguf(const io::GgufMetadata& metadata, const ModelConfig& config);

}  // namespace dsmoe
