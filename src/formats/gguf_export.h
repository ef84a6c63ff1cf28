// Writes a model as a GGUF file, tensor by tensor: no more than a piece of one is held at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "dsmoe/context.h"
#include "dsmoe/generation_config.h"
#include "dsmoe/tokenizer.h"
#include "formats/gguf_types.h"
#include "formats/model_io.h"

namespace dsmoe::io {
class GgufMetadata;
}

namespace dsmoe {

class ModelSource;

// All keys but those of the tensors' types, for a model without a file of its own (ModelSource::export_metadata).
io::GgufMetadata gguf_export_metadata(const ModelConfig& config, const std::optional<Tokenizer>& tokenizer,
                                      const GenerationConfig& generation, const std::string& name);

// The bytes that the tensors will need, all together.
std::uint64_t gguf_bytes(const ModelConfig& config, const GgufFileType& type);

// `metadata` as gguf_export_metadata() makes it; the keys of the file's type are added. `tensor` gives
// parameters in any dtype; `release` (may be empty) hears when one is done with. The file appears when it is complete, and
// `check` (may be empty) has not thrown, which it does when the tensors that were given turn out to be wrong.
void write_gguf(Context& ctx, const std::filesystem::path& path, const ModelConfig& config, io::GgufMetadata metadata,
                const GgufFileType& type, const TensorSource& tensor, const std::function<void(const Parameter&)>& release,
                const ByteProgress& progress, const std::function<void()>& check = {});

// A model in another place or format, without holding it.
void write_gguf(Context& ctx, const std::filesystem::path& path, const ModelSource& source, io::GgufMetadata metadata,
                const GgufFileType& type, const ByteProgress& progress);

// A randomly initialised model. Quantized matrices are strung together from blocks drawn at random out of 2^16 per type,
// each of which holds independent normal numbers, quantized: that is as fast as the disk, whatever the type costs. The
// other tensors, and all of a plain file, are those of initial_tensor.
void write_random_gguf(Context& ctx, const std::filesystem::path& path, const ModelConfig& config,
                       io::GgufMetadata metadata, const GgufFileType& type, std::uint64_t seed,
                       const ByteProgress& progress);

}  // namespace dsmoe
