// A model's config as GGUF metadata of its family's architecture, and back.
#pragma once

#include <string>

#include "dsmoe/model_config.h"
#include "io/gguf.h"

namespace dsmoe {

// Throws Error naming the field when the architecture cannot carry the model, because of what readers of such files take
// for granted (gguf_names.h).
void check_gguf_carries(const ModelConfig& config);

// All keys but those of the tokenizer and of the tensors' types. The text of config.json goes along under a key of our
// own, which other readers pass over: what the architecture has no key for survives the way to GGUF and back.
io::GgufMetadata gguf_metadata(const ModelConfig& config, const std::string& name);

// Keys that are missing have the format's defaults; what this model does not do is refused by its key. Where the text
// of config.json is there, the keys win over it.
ModelConfig config_from_gguf(const io::GgufFile& file);

}  // namespace dsmoe
