// A model as a GGUF file: config and tokenizer in its metadata, and the tensors.
#pragma once

#include <memory>

#include "formats/model_source.h"
#include "io/gguf.h"

namespace dsmoe {

std::unique_ptr<const ModelSource> open_gguf_source(io::GgufFile file);

}  // namespace dsmoe
