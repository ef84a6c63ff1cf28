// The training loop: steps, evaluation, checkpoints and logs, until the steps are done or somebody asks to stop.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "train/dataset.h"
#include "train/run_folder.h"
#include "train/trainer.h"

namespace dsmoe::train {

// Where a run stands; kept in a checkpoint beside the trainer's state.
struct RunState {
  Index position = 0;  // sequences read so far: the next step starts there
  Index tokens = 0;    // read so far
  double best_loss = 0;
  Index best_step = -1;  // steps done when the held-out loss was lowest; -1: not evaluated yet
};

// One line of log.jsonl.
struct StepRecord {
  Index step = 0;  // from 0
  StepResult result;
  Index tokens = 0;  // so far
  double tokens_per_second = 0;
  std::optional<Evaluation> evaluation;  // after the step
};

struct RunHooks {
  std::function<bool()> stop;                   // asked after each step
  std::function<void(const StepRecord&)> step;  // heard of each step
  std::function<void(const std::filesystem::path& folder)>
      extra_files;  // puts the tokenizer and the like into a checkpoint
};

struct RunResult {
  RunState state;
  bool stopped = false;                  // before the last step
  std::optional<Evaluation> evaluation;  // the last one
  Index steps = 0, tokens = 0;           // of this call
  double seconds = 0;
};

// The options of the run whose checkpoint is in `folder`.
TrainOptions load_options(const std::filesystem::path& folder);
RunState load_run_state(const std::filesystem::path& folder);

// Goes on from trainer.steps_done() and `state` to options.steps.
RunResult run(Trainer& trainer, const Dataset& data, const Dataset* held_out, const TrainOptions& options,
              RunFolder& folder, RunState state, const RunHooks& hooks);

}  // namespace dsmoe::train
