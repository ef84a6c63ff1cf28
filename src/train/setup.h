// What a training run starts from: options, model, tokenizer and data, for a new run or from a checkpoint.
#pragma once

#include <filesystem>
#include <optional>

#include "dsmoe/context.h"
#include "dsmoe/generation_config.h"
#include "dsmoe/trainer.h"
#include "model/weights.h"
#include "train/data/open_dataset.h"
#include "train/origin.h"
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
  Origin origin;                                 // what a checkpoint keeps of all this
};

// Throws for options that do not fit together, for a folder that holds something else, and for a run that is to be resumed
// with another model, tokenizer or data than it had.
// `share`: which routed experts a new model is made with here.
Start set_up_training(const RunSetup& setup, RunFolder& folder, Context& ctx, const SetupHooks& hooks,
                      ExpertShare share = {});

}  // namespace dsmoe::train
