// What a run was started with, in trainer/origin.json of its checkpoints: fingerprints by which a resumed run refuses
// another model, config, tokenizer or other data than it has trained with so far.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dsmoe/model_config.h"
#include "dsmoe/tokenizer.h"
#include "dsmoe/trainer.h"
#include "formats/model_source.h"

namespace dsmoe::train {

struct Origin {
  std::optional<ModelConfig> config;  // that it was started with; none for a run of a version that did not keep it
  std::string weights;                // of the model that it was started with; "" for random ones
  std::string tokenizer;              // "" for none
  std::string data;
  std::string saved_config;  // of config.json as the checkpoint was saved

  // Into a checkpoint that has its config.json.
  void save(const std::filesystem::path& checkpoint) const;
  // None for a checkpoint of a version that did not write any.
  static std::optional<Origin> load(const std::filesystem::path& checkpoint);
};

// Of names, shapes, dtypes, and up to 64 KiB of each tensor, spread over it.
std::string fingerprint(const ModelSource& model);
std::string fingerprint(const std::optional<Tokenizer>& tokenizer);

// config and weights of what the setup names to start from.
Origin starting_point(const RunSetup& setup);

// Throws for a setup that names another model or architecture to start from than the run in `out` did.
void check_starting_point(const RunSetup& setup, const Origin& run);
// Throws for a config.json of the checkpoint that was changed since it was saved.
void check_saved_config(const std::filesystem::path& checkpoint, const Origin& run);
// Throws when two checkpoints of one folder come from different runs.
void check_same_run(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace dsmoe::train
