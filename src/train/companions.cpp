#include "train/companions.h"

#include "formats/folder_export.h"

namespace dsmoe::train {

void write_companions(const std::filesystem::path& folder, const ModelConfig& config,
                      const std::optional<Tokenizer>& tokenizer, const GenerationConfig& generation) {
  dsmoe::write_companions(folder, config, tokenizer, generation);
}

}  // namespace dsmoe::train
