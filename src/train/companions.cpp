#include "train/companions.h"

#include <nlohmann/json.hpp>

#include "io/atomic_file.h"

namespace dsmoe::train {

namespace {

std::string generation_config(const ModelConfig& c) {
  nlohmann::ordered_json j = {{"_from_model_config", true}};
  if (c.bos_token_id) j["bos_token_id"] = *c.bos_token_id;
  if (c.eos_token_id.size() == 1) j["eos_token_id"] = c.eos_token_id.front();
  if (c.eos_token_id.size() > 1) j["eos_token_id"] = c.eos_token_id;
  return j.dump(2) + "\n";
}

}  // namespace

void write_companions(const std::filesystem::path& folder, const ModelConfig& config,
                      const std::optional<Tokenizer>& tokenizer) {
  io::write_file_atomically(folder / "generation_config.json", generation_config(config));
  if (tokenizer) tokenizer->save(folder);
}

}  // namespace dsmoe::train
