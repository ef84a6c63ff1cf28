// Training a model: from random weights, from a model (fine-tuning, LoRA), or resuming a run, with checkpoints and logs.
//
//   dsmoe::train::RunSetup setup;
//   setup.out = "run";
//   setup.train.steps = 500;
//   dsmoe::train::TrainingRun run(setup);
//   run.run();  // "run" is now a model's folder
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsmoe/model.h"
#include "dsmoe/moe.h"
#include "dsmoe/train_options.h"

namespace dsmoe::train {

// What a run starts from, and its output folder.
struct RunSetup {
  std::string model, preset, config;  // at most one of them; none: the preset "tiny"
  std::string out;
  bool resume = false;
  std::string tokenizer;
  std::optional<Device> device;
  int threads = 0;
  // How the ranks that mpirun or srun started share the work; a checkpoint does not know it. A rank on which a call throws
  // must end the job (MPI_Abort): the others wait for it.
  Index expert_parallel = 1;
  Index zero = 0;
  bool no_overlap = false;
  bool partial_sums = false;
  TrainOptions train;
  BalanceOptions balance;
  // Names of options in `train` that count as given although they have their default value. Other options with the default
  // value keep the checkpoint's value when a run is resumed, and get fine-tuning's default (lr, dtype) with a model.
  std::set<std::string> given;

  void validate() const;  // the other options too

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.model, {"model", "Fine-tune this model: a Hugging Face folder"});
    v(o.preset, {"preset", "Train a known architecture from random weights (default: tiny)"});
    v(o.config, {"config", "Train the architecture of this config.json from random weights"});
    v(o.out, {"out", "Output folder for checkpoints and logs"});
    v(o.resume, {"resume", "Resume the run in OUT; options not given keep their saved values"});
    v(o.tokenizer, {"tokenizer", "Folder with a tokenizer (default: the model's, or one learned from the data)"});
    v(o.device, {"device", "Where the model is trained (auto: a GPU if there is one and the run fits it)"});
    v(o.threads, {"threads", "CPU threads (0: one per physical core; of a hybrid processor, the fast ones)", at_least(0)});
    v(o.expert_parallel,
      {"expert-parallel", "With mpirun: spread the routed experts over groups of this many ranks (1: every rank has all)",
       at_least(1)});
    v(o.zero,
      {"zero", "With mpirun: 1 shares out moments and master weights among the ranks (ZeRO stage 1), 2 the gradients too",
       at_least(0).at_most(2)});
    v(o.no_overlap,
      {"no-overlap", "With mpirun: sum gradients after backward, not while it runs; the same bits either way"});
    v(o.partial_sums,
      {"partial-sums",
       "With expert-parallel: one sum per rank comes back instead of one row per expert; fewer bytes, other roundings"});
  }
};

struct SetupHooks {
  std::function<void(std::string_view line)> note;                       // lines for the user: what was chosen
  std::function<void(std::uint64_t done, std::uint64_t total)> reading;  // bytes of the data
};

struct StepResult {
  double loss = 0;        // mean over all targets of the step, before its update
  BalanceLosses balance;  // mean over the passes
  double grad_norm = 0;   // before clipping
  double rate = 0;        // learning rate
  Index tokens = 0;       // inputs
  // Largest and smallest load of any expert in any layer, relative to the mean (1: even); 0 without MoE layers.
  double load_max = 0, load_min = 0;
  // With mpirun: seconds that all ranks together waited for others, and the rank that waited least, which is the slowest.
  double waited = 0;
  Index slowest_rank = -1;
};

struct Evaluation {
  double loss = 0;  // mean over the targets
  Index tokens = 0;
  std::vector<std::pair<std::string, double>> domains;  // the loss per domain
};

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
  double waited_share = 0;               // of the time of all ranks
  std::optional<Evaluation> evaluation;  // after the step
};

struct RunHooks {
  std::function<bool()> stop;                   // checked after step(); true stops the run
  std::function<void(const StepRecord&)> step;  // called after each step; on a GPU the next one may be under way then
  std::function<void(const std::filesystem::path& folder)> extra_files;  // adds files to a checkpoint
  std::function<void(std::string_view line)> note;                       // for the user: checkpoints that were removed
  bool save_best = true;  // a checkpoint of every evaluation that is the best so far
};

struct RunResult {
  RunState state;
  bool stopped = false;                  // before the last step
  std::optional<Evaluation> evaluation;  // the last one
  Index steps = 0, tokens = 0;           // of this call
  double seconds = 0;
};

class TrainingRun {
 public:
  // Reads model, tokenizer and data; with setup.resume, resumes the run in setup.out. Locks the folder.
  explicit TrainingRun(const RunSetup& setup, const SetupHooks& hooks = {});
  ~TrainingRun();
  TrainingRun(TrainingRun&&) noexcept;

  const TrainOptions& options() const;                               // the effective options: saved ones when resumed
  const std::optional<std::filesystem::path>& resumed_from() const;  // the checkpoint; none for a new run
  Index steps_done() const;
  Index trained_parameters() const;
  // Shares its weights with the run: further training changes them.
  std::shared_ptr<const Model> model() const;

  // Trains until options().steps or until hooks.stop returns true. Saves checkpoints as the options say, and one at the
  // end.
  RunResult run(const RunHooks& hooks = {});
  std::optional<Evaluation> evaluate() const;  // on the held-out data; none when there is none

  double flops_per_token() const;  // forward and backward
  Device device() const;           // where it is trained
  // FLOP/s of multiply-adds in registers of the CPU, in the run's dtype, measured on this machine for `seconds`.
  double measure_peak_flops(double seconds) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with model()
};

}  // namespace dsmoe::train
