// dsmoe train: pre-trains or fine-tunes a model; can be stopped at any time and resumed to the bit.
#include <fmt/format.h>
#include <sys/resource.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "cli/option_flags.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/table.h"
#include "core/device.h"
#include "dsmoe/trainer.h"
#include "model/plan.h"
#include "train/checkpoints.h"

namespace dsmoe::cli {

namespace {

// The line beside the bar.
std::string note_of(const train::StepRecord& r, double flops_per_token, double peak) {
  const double aux = r.result.balance.total();
  std::string note = fmt::format("loss {:.3f}", r.result.loss);
  if (r.evaluation) note += fmt::format(" (held out {:.3f})", r.evaluation->loss);
  if (aux != 0) note += fmt::format(", aux {:.2g}", aux);
  note += fmt::format(", lr {:.2g}, {} tok/s", r.result.rate, thousands(static_cast<std::int64_t>(r.tokens_per_second)));
  if (r.result.slowest_rank >= 0)
    note += fmt::format(", ranks wait {:.0f}%, slowest {}", 100 * r.waited_share, r.result.slowest_rank);
  const double flops = r.tokens_per_second * flops_per_token;
  return note + (peak > 0 ? fmt::format(", {:.0f}% of peak", 100 * flops / peak) : ", " + human_flops(flops) + "/s");
}

// The peak, measured again now and then: other work on the machine can only make it look lower.
class PeakMeter {
 public:
  explicit PeakMeter(const train::TrainingRun& run) : run_(run) {}
  // 0 on a GPU, whose peak `dsmoe bench train` measures.
  double flops() {
    if (run_.device() == Device::kCuda) return 0;
    constexpr double kEvery = 15;  // seconds, between measurements of 0.02
    if (now_seconds() >= next_) {
      best_ = std::max(best_, run_.measure_peak_flops(0.02));
      next_ = now_seconds() + kEvery;
    }
    return best_;
  }

 private:
  const train::TrainingRun& run_;
  double best_ = 0, next_ = 0;
};

double most_memory(Device device) {
  if (device == Device::kCuda) return static_cast<double>(device::usage().peak);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

struct TrainFlags {
  train::RunSetup setup;
  OptionMap train;  // flags of setup.train, by the option's name
  bool json = false;
};

struct Summary {
  std::string out;
  bool json;
  const train::RunResult& result;
  std::optional<train::StepRecord> last;
  Index steps_done;
  Device device;
};

void print_summary(const Summary& s) {
  const double rate = s.result.seconds > 0 ? static_cast<double>(s.result.tokens) / s.result.seconds : 0;
  if (s.json) {
    nlohmann::ordered_json domains = nlohmann::ordered_json::object();
    if (s.result.evaluation)
      for (const auto& [name, loss] : s.result.evaluation->domains) domains[name] = loss;
    nlohmann::ordered_json out = {{"folder", s.out},
                                  {"steps", s.steps_done},
                                  {"tokens", s.result.state.tokens},
                                  {"seconds", s.result.seconds},
                                  {"tokens_per_second", rate},
                                  {"loss", s.last ? nlohmann::ordered_json(s.last->result.loss) : nlohmann::ordered_json()},
                                  {"stopped", s.result.stopped},
                                  {"device", option_name(s.device)},
                                  {"memory_bytes", most_memory(s.device)}};
    if (s.result.evaluation) out["eval_loss"] = s.result.evaluation->loss;
    if (s.result.state.best_step >= 0) out["best_step"] = s.result.state.best_step;
    if (!domains.empty()) out["eval_domains"] = domains;
    return print_json(out);
  }
  print(fmt::format("{} after {} steps, {} tokens: loss {}{}; {} in this run, {} tok/s, {} of {}memory\n",
                    s.result.stopped ? "Stopped" : "Done", s.steps_done, thousands(s.result.state.tokens),
                    s.last ? fmt::format("{:.4f}", s.last->result.loss) : "unknown",
                    s.result.evaluation ? fmt::format(", held out {:.4f}", s.result.evaluation->loss) : "",
                    human_duration(s.result.seconds), thousands(static_cast<std::int64_t>(rate)),
                    human_bytes(most_memory(s.device)), s.device == Device::kCuda ? "GPU " : ""));
  if (s.result.evaluation && !s.result.evaluation->domains.empty()) {
    Table table({"held-out domain", "loss"});
    for (const auto& [name, loss] : s.result.evaluation->domains) table.row({name, fmt::format("{:.3f}", loss)});
    table.row({"all", fmt::format("{:.3f}", s.result.evaluation->loss)});
    print("\n" + table.str() + "\n");
  }
  // Without links, where the file system has none.
  const bool links = std::filesystem::exists(std::filesystem::path(s.out) / "last");
  const auto checkpoint = [&](Index step) { return s.out + "/" + train::checkpoint_name(step); };
  const std::string model = links ? s.out : checkpoint(s.steps_done);
  const Index best = s.result.state.best_step;
  print(fmt::format("The model is {} (the last checkpoint{}).\n", model,
                    best >= 0 && best != s.steps_done
                        ? fmt::format("; the best is {}, of step {}", links ? s.out + "/best" : checkpoint(best), best)
                        : ""));
  print(s.result.stopped ? fmt::format("Resume:  dsmoe train --resume -o {}\n", s.out)
                         : fmt::format("Try it:  dsmoe generate -m {} -p \"...\"\n", model));
}

// Reads model and data, with notes and a progress bar.
train::TrainingRun open_run(const train::RunSetup& setup) {
  std::optional<Progress> reading;
  train::SetupHooks hooks;
  hooks.note = [&](std::string_view line) {
    if (reading) reading->finish();
    reading.reset();
    print_note(line);
  };
  hooks.reading = [&](std::uint64_t done, std::uint64_t total) {
    if (!reading) reading.emplace("reading", static_cast<std::int64_t>(total >> 10), "KiB");
    reading->update(static_cast<std::int64_t>(done >> 10));
  };
  train::TrainingRun run(setup, hooks);
  if (reading) reading->finish();
  return run;
}

void run(const TrainFlags& flags) {
  train::RunSetup setup = flags.setup;
  if (!setup.model.empty() + !setup.preset.empty() + !setup.config.empty() > 1)
    throw UsageError("give only one of -m, --preset and --config");
  for (const auto& [name, flag] : flags.train)
    if (flag->count() > 0) setup.given.insert(name);
  join_ranks();
  train::TrainingRun run = open_run(setup);
  const train::TrainOptions& options = run.options();
  if (run.resumed_from())
    print_note(fmt::format("resuming after {} steps from {}", run.steps_done(), run.resumed_from()->string()));
  const ParameterCount count = count_parameters(run.model()->config());
  print_note(fmt::format("{} parameters, {} activated per token, {} trained in {}{}; {} tokens per step",
                         human_count(static_cast<double>(count.total)), human_count(static_cast<double>(count.activated)),
                         human_count(static_cast<double>(run.trained_parameters())), to_string(options.dtype),
                         run.device() == Device::kCuda ? " on a GPU" : "",
                         thousands(options.batch_size * options.grad_accum * options.seq_len)));

  PeakMeter peak(run);
  const Interrupt interrupt(Work::kUnattended);
  Progress progress("train", options.steps, "steps", run.steps_done());
  std::optional<train::StepRecord> last;
  train::RunHooks hooks;
  hooks.stop = [&] { return interrupt.pending(); };
  hooks.note = [&](std::string_view line) { progress.line(line); };
  hooks.step = [&](const train::StepRecord& r) {
    last = r;
    progress.update(r.step + 1, note_of(r, run.flops_per_token(), peak.flops()));
  };
  const train::RunResult result = run.run(hooks);
  progress.finish();
  print_summary({setup.out, flags.json, result, last, run.steps_done(), run.device()});
}

void add_options(CLI::App& command, TrainFlags& flags) {
  train::RunSetup& s = flags.setup;
  const auto take = [&](const OptionMap& more) { flags.train.insert(more.begin(), more.end()); };
  add_flags(command, s, {.only = {"model", "preset", "config", "out", "resume"}})["out"]->required();
  take(add_flags(command, s.train, {.only = {"data"}}));
  add_flags(command, s, {.only = {"tokenizer"}});
  std::set<std::string> rest;
  train::TrainOptions::visit(s.train, [&](auto&, const OptionInfo& o) {
    if (!flags.train.contains(o.name)) rest.insert(o.name);
  });
  take(add_flags(command, s.train, {.only = rest}));
  add_flags(command, s.balance);
  add_flags(command, s, {.only = {"device", "threads", "expert-parallel", "zero", "no-overlap", "partial-sums"}});
  command.add_flag("--json", flags.json, "Print the summary as JSON");
}

}  // namespace

void add_train(CLI::App& program) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = add_command(program, "train", "Train a model from scratch, fine-tune one, or resume a run");
  add_options(*command, *flags);
  command->footer(
      "Examples:\n"
      "  dsmoe train -o run                                   tiny preset, built-in corpus\n"
      "  dsmoe train --resume -o run --steps 2000             resume it and train longer\n"
      "  dsmoe train -m MODEL --data chats.jsonl -o tuned --lora-rank 8\n"
      "  mpirun -n 8 dsmoe train -o run --expert-parallel 4 --zero 1    by 8 processes (docs/howto/train-on-many.md)\n"
      "ctrl-C (or SIGTERM, SIGHUP) finishes the current step and saves a checkpoint; a second one quits at once.\n"
      "OUT is a model folder: dsmoe generate -m OUT.");
  command->callback([flags] { run(*flags); });
}

}  // namespace dsmoe::cli
