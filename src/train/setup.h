// What a training run starts from: options, model, tokenizer and data, for a new run or from a checkpoint.
#pragma once

#include <filesystem>
#include <optional>

#include "dsmoe/context.h"
#include "dsmoe/generation_config.h"
#include "dsmoe/trainer.h"
#include "model/weights.h"
#include "train/data/open_dataset.h"
#include "train/run_folder.h"

namespace dsmoe::train {

struct Start {
  TrainOptions options;  // merged: a checkpoint's, the ones that are given, the defaults of fine-tuning
  ModelConfig config;
  ModelWeights weights;
  std::optional<Tokenizer> tokenizer;  // none for token ids without one
  GenerationConfig generation;         // of the model that is trained on; it goes along into the checkpoints
  Data data;
  std::optional<std::filesystem::path> resumed;  // the checkpoint
};

// Throws for options that do not fit together, and for a folder that holds something else.
Start set_up_training(const RunSetup& setup, const RunFolder& folder, Context& ctx, const SetupHooks& hooks);

}  // namespace dsmoe::train
