// dsmoe train: pre-trains or fine-tunes a model; can be stopped at any time and resumed to the bit.
#include <fmt/format.h>
#include <sys/resource.h>

#include <memory>
#include <optional>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "cli/model_output.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/train_setup.h"
#include "core/fail.h"
#include "model/plan.h"
#include "ops/cpu/peak.h"

namespace dsmoe::cli {

namespace {

// The line beside the bar.
std::string note_of(const train::StepRecord& r, double flops_per_token, double peak) {
  const double aux = r.result.balance.total();
  std::string note = fmt::format("loss {:.3f}", r.result.loss);
  if (r.evaluation) note += fmt::format(" (held out {:.3f})", r.evaluation->loss);
  if (aux != 0) note += fmt::format(", aux {:.2g}", aux);
  return note + fmt::format(", lr {:.2g}, {} tok/s, {:.0f}% of peak", r.result.rate,
                            thousands(static_cast<std::int64_t>(r.tokens_per_second)),
                            100 * r.tokens_per_second * flops_per_token / peak);
}

// The peak, measured again now and then: other work on the machine can only make it look lower.
class PeakMeter {
 public:
  PeakMeter(Context& ctx, DType dtype) : ctx_(ctx), dtype_(dtype) {}
  double flops() {
    constexpr double kEvery = 15;  // seconds, between measurements of 0.02
    if (now_seconds() >= next_) {
      best_ = std::max(best_, cpu::peak_flops(ctx_, dtype_, 0.02));
      next_ = now_seconds() + kEvery;
    }
    return best_;
  }

 private:
  Context& ctx_;
  DType dtype_;
  double best_ = 0, next_ = 0;
};

double most_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

struct Summary {
  const TrainFlags& flags;
  const TrainSetup& setup;
  const train::RunResult& result;
  std::optional<train::StepRecord> last;
  Index steps_done;
};

void print_summary(const Summary& s) {
  const double rate = s.result.seconds > 0 ? static_cast<double>(s.result.tokens) / s.result.seconds : 0;
  if (s.flags.json) {
    nlohmann::ordered_json domains = nlohmann::ordered_json::object();
    if (s.result.evaluation)
      for (const auto& [name, loss] : s.result.evaluation->domains) domains[name] = loss;
    nlohmann::ordered_json out = {{"folder", s.flags.out},
                                  {"steps", s.steps_done},
                                  {"tokens", s.result.state.tokens},
                                  {"seconds", s.result.seconds},
                                  {"tokens_per_second", rate},
                                  {"loss", s.last ? nlohmann::ordered_json(s.last->result.loss) : nlohmann::ordered_json()},
                                  {"stopped", s.result.stopped},
                                  {"memory_bytes", most_memory()}};
    if (s.result.evaluation) out["eval_loss"] = s.result.evaluation->loss;
    if (s.result.state.best_step >= 0) out["best_step"] = s.result.state.best_step;
    if (!domains.empty()) out["eval_domains"] = domains;
    return print_json(out);
  }
  print(fmt::format("{} after {} steps, {} tokens: loss {}{}; {} in this run, {} tok/s, {} of memory\n",
                    s.result.stopped ? "Stopped" : "Done", s.steps_done, thousands(s.result.state.tokens),
                    s.last ? fmt::format("{:.4f}", s.last->result.loss) : "unknown",
                    s.result.evaluation ? fmt::format(", held out {:.4f}", s.result.evaluation->loss) : "",
                    human_duration(s.result.seconds), thousands(static_cast<std::int64_t>(rate)),
                    human_bytes(most_memory())));
  if (s.result.evaluation && !s.result.evaluation->domains.empty()) {
    Table table({"held-out domain", "loss"});
    for (const auto& [name, loss] : s.result.evaluation->domains) table.row({name, fmt::format("{:.3f}", loss)});
    table.row({"all", fmt::format("{:.3f}", s.result.evaluation->loss)});
    print("\n" + table.str() + "\n");
  }
  print(fmt::format("The model is {} (the last checkpoint{}).\n", s.flags.out,
                    s.result.state.best_step >= 0 && s.result.state.best_step != s.steps_done
                        ? fmt::format("; the best is {}/best, of step {}", s.flags.out, s.result.state.best_step)
                        : ""));
  print(s.result.stopped ? fmt::format("Go on:  dsmoe train --resume -o {}\n", s.flags.out)
                         : fmt::format("Use it:  dsmoe generate -m {} -p \"...\"\n", s.flags.out));
}

void run(const TrainFlags& flags) {
  Context ctx(flags.threads);
  train::RunFolder folder(flags.out);
  TrainSetup setup = set_up_training(flags, folder, ctx);
  train::Trainer trainer(ctx, setup.config, std::move(setup.weights), setup.options);
  train::RunState state;
  if (setup.resumed) {
    trainer.load_state(*setup.resumed);
    state = train::load_run_state(*setup.resumed);
  }
  if (trainer.steps_done() >= setup.options.steps)
    fail(ErrorCode::kInvalidArgument, "{} has its {} steps already; give more --steps to go on", flags.out,
         trainer.steps_done());
  if (setup.resumed)
    print_note(fmt::format("resuming after {} steps from {}", trainer.steps_done(), setup.resumed->string()));
  const ParameterCount count = count_parameters(setup.config);
  print_note(fmt::format("{} parameters, {} of them for one token, {} trained in {}; {} tokens a step",
                         human_count(static_cast<double>(count.total)), human_count(static_cast<double>(count.activated)),
                         human_count(static_cast<double>(trainer.trained_parameters())), setup.options.dtype,
                         thousands(setup.options.batch_size * setup.options.grad_accum * setup.options.seq_len)));

  const auto flops = static_cast<double>(training_flops(setup.config, setup.options.seq_len));
  PeakMeter peak(ctx, setup.options.dtype == "bf16" ? DType::kBF16 : DType::kF32);
  const Interrupt interrupt(Work::kUnattended);
  Progress progress("train", setup.options.steps, "steps", trainer.steps_done());
  std::optional<train::StepRecord> last;
  train::RunHooks hooks;
  hooks.stop = [&] { return interrupt.pending(); };
  hooks.extra_files = [&](const std::filesystem::path& to) { write_companions(to, setup.config, setup.tokenizer); };
  hooks.step = [&](const train::StepRecord& r) {
    last = r;
    progress.update(r.step + 1, note_of(r, flops, peak.flops()));
  };
  const train::RunResult result =
      train::run(trainer, *setup.data.training, setup.data.held_out.get(), setup.options, folder, state, hooks);
  progress.finish();
  print_summary({flags, setup, result, last, trainer.steps_done()});
}

}  // namespace

void add_train(CLI::App& program) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = add_command(program, "train", "Train a model from scratch, fine-tune one, or go on with a run");
  flags->add(*command);
  command->footer(
      "Examples:\n"
      "  dsmoe train -o run                                   the tiny preset on the built-in corpus\n"
      "  dsmoe train --resume -o run --steps 2000             goes on with it\n"
      "  dsmoe train -m MODEL --data chats.jsonl -o tuned --lora-rank 8\n"
      "ctrl-C (or SIGTERM, SIGHUP) finishes the step, saves and ends; a second one ends at once.\n"
      "OUT is a model: dsmoe generate -m OUT.");
  command->callback([flags] { run(*flags); });
}

}  // namespace dsmoe::cli
