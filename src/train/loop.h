// The training loop: steps, evaluation, checkpoints and logs, until the last step or a request to stop.
#pragma once

#include <filesystem>

#include "dsmoe/trainer.h"
#include "train/dataset.h"
#include "train/run_folder.h"
#include "train/trainer.h"

namespace dsmoe::train {

// The options of the run whose checkpoint is in `folder`.
TrainOptions load_options(const std::filesystem::path& folder);
RunState load_run_state(const std::filesystem::path& folder);

// Continues from trainer.steps_done() and `state` to options.steps.
RunResult run(Trainer& trainer, const Dataset& data, const Dataset* held_out, const TrainOptions& options,
              RunFolder& folder, RunState state, const RunHooks& hooks);

}  // namespace dsmoe::train
