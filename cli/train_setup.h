// What dsmoe train starts from: flags, the model, its tokenizer and the data.
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "dsmoe/context.h"
#include "dsmoe/tokenizer.h"
#include "train/data/open_dataset.h"
#include "train/loop.h"

namespace dsmoe::cli {

struct TrainFlags {
  train::TrainOptions options;
  std::string model, preset, config, out, tokenizer;
  bool resume = false, json = false;
  int threads = 0;
  // Changes of the model's config.
  std::optional<double> aux_loss_alpha, device_aux_alpha, router_z_loss;
  std::optional<Index> devices;
  std::string balance;  // "sequence" or "batch"

  std::map<std::string, CLI::Option*> given;  // by the name that the options have in a checkpoint

  void add(CLI::App& command);
  bool has(const std::string& name) const { return given.at(name)->count() > 0; }
};

struct TrainSetup {
  train::TrainOptions options;
  ModelConfig config;
  ModelWeights weights;
  std::optional<Tokenizer> tokenizer;
  train::Data data;
  std::optional<std::filesystem::path> resumed;  // the checkpoint
};

// Throws UsageError or Error for flags that do not fit together.
TrainSetup set_up_training(const TrainFlags& flags, const train::RunFolder& folder, Context& ctx);

}  // namespace dsmoe::cli
