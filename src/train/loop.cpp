#include "train/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/fail.h"
#include "io/atomic_file.h"
#include "io/json_text.h"
#include "train/event_file.h"
#include "train/step_log.h"

namespace dsmoe::train {

namespace {

constexpr const char* kRunFile = "run.json";

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::filesystem::path run_file(const std::filesystem::path& folder) { return folder / "trainer" / kRunFile; }

void write_run(const std::filesystem::path& folder, const RunState& s, const TrainOptions& options) {
  const nlohmann::ordered_json run = {
      {"state", {{"position", s.position}, {"tokens", s.tokens}, {"best_loss", s.best_loss}, {"best_step", s.best_step}}},
      {"options", to_json(options)}};
  io::write_file_atomically(run_file(folder), run.dump(2) + "\n");
}

class Loop {
 public:
  Loop(Trainer& trainer, const Dataset& data, const Dataset* held_out, const TrainOptions& options, RunFolder& folder,
       RunState state, const RunHooks& hooks)
      : trainer_(trainer),
        data_(data),
        held_out_(held_out),
        options_(options),
        folder_(folder),
        hooks_(hooks),
        world_(trainer.world()),
        first_(world_ == nullptr || world_->rank() == 0) {
    result_.state = state;
    if (!first_) return;
    log_.emplace(folder.path() / "log.jsonl", trainer.steps_done());
    events_.emplace(folder.path() / "tensorboard", trainer.steps_done());
  }

  RunResult run() {
    const double began = now();
    bool saved = true;  // a checkpoint of the steps done exists, or there are none
    together();
    while (trainer_.steps_done() < options_.steps && !result_.stopped) {
      launch();
      // On a GPU a step's numbers are read while the next one runs, but where the run looks at the model in between.
      const bool ahead = trainer_.runs_ahead() && !looks_after(trainer_.steps_done());
      while (trainer_.launched() > (ahead && !result_.stopped ? 1 : 0)) {
        const StepRecord record = finish();
        if (hooks_.step) hooks_.step(record);  // before stop(), which may follow from what it saw
        result_.stopped = (result_.stopped || asked_to_stop()) && trainer_.steps_done() < options_.steps;
      }
      if (ahead && !result_.stopped) continue;
      const Index done = trainer_.steps_done();
      saved = save_due(done) || new_best_ || result_.stopped || done == options_.steps;
      if (saved) save();
    }
    result_.seconds = now() - began;
    return result_;
  }

 private:
  // Who was asked does not matter: all ranks stop together.
  bool asked_to_stop() const {
    std::int64_t asked = hooks_.stop && hooks_.stop() ? 1 : 0;
    if (world_) world_->all_reduce(std::span(&asked, 1));
    return asked > 0;
  }

  bool save_due(Index done) const { return options_.save_every > 0 && done % options_.save_every == 0; }
  bool evaluation_due(Index done) const {
    return held_out_ && (done == options_.steps || (options_.eval_every > 0 && done % options_.eval_every == 0));
  }
  bool looks_after(Index done) const { return done == options_.steps || save_due(done) || evaluation_due(done); }

  void launch() {
    if (trainer_.launched() == 0) last_ = now();
    std::vector<Batch> passes;
    RunState& state = result_.state;
    for (Index pass = 0; pass < options_.grad_accum; ++pass, state.position += options_.batch_size)
      passes.push_back(world_ ? batch_of_rank(*world_, data_, state.position, options_.batch_size).batch
                              : data_.batch(state.position, options_.batch_size));
    checked([&] { trainer_.launch(passes); });
  }

  // The oldest step that was launched.
  StepRecord finish() {
    StepRecord record{.step = trainer_.steps_done() - trainer_.launched()};
    RunState& state = result_.state;
    checked([&] { record.result = trainer_.finish(); });
    state.tokens += record.result.tokens;
    result_.tokens += record.result.tokens;
    ++result_.steps;
    record.tokens = state.tokens;
    const double time = now();
    const double seconds = time - std::exchange(last_, time);
    record.tokens_per_second = static_cast<double>(record.result.tokens) / seconds;
    if (world_) record.waited_share = std::min(1.0, record.result.waited / (seconds * world_->size()));
    const Index done = record.step + 1;
    new_best_ = false;
    if (evaluation_due(done)) {
      record.evaluation = result_.evaluation = trainer_.evaluate(*held_out_, options_.eval_sequences);
      new_best_ = hooks_.save_best && (state.best_step < 0 || record.evaluation->loss < state.best_loss);
      if (new_best_) state.best_loss = record.evaluation->loss, state.best_step = done;
      last_ = now();
    }
    if (!first_) return record;
    log_->add(record);
    add_events(record);
    return record;
  }

  template <class Fn>
  void checked(Fn fn) {
    try {
      fn();
    } catch (const Error& error) {
      const auto last = folder_.last();
      if (error.code() != ErrorCode::kNumeric) throw;
      throw Error(error.code(),
                  fmt::format("{}; {}", error.what(),
                              last ? "the last good checkpoint is " + last->string() : "there is no checkpoint yet"));
    }
  }

  void save() {
    if (!first_) {
      trainer_.save({});  // what rank 0 writes
      together();
      return folder_.follow(trainer_.steps_done());
    }
    folder_.add(
        trainer_.steps_done(),
        [&](const std::filesystem::path& to) {
          trainer_.save(to);
          write_run(to, result_.state, options_);
          if (hooks_.extra_files) hooks_.extra_files(to);
        },
        result_.state.best_step, options_.keep, hooks_.note);
    together();
  }

  // What rank 0 alone opens and puts in place is not waited for in the next step, whose waiting is counted.
  void together() {
    if (world_) world_->barrier();
  }

  void add_events(const StepRecord& r) {
    std::vector<std::pair<std::string, double>> values = {{"train/loss", r.result.loss},
                                                          {"train/aux_loss", r.result.balance.total()},
                                                          {"train/grad_norm", r.result.grad_norm},
                                                          {"train/lr", r.result.rate},
                                                          {"train/tokens_per_second", r.tokens_per_second},
                                                          {"experts/load_max", r.result.load_max},
                                                          {"experts/load_min", r.result.load_min}};
    if (world_) {
      values.emplace_back("ranks/waited_share", r.waited_share);
      values.emplace_back("ranks/slowest", static_cast<double>(r.result.slowest_rank));
    }
    if (r.evaluation) {
      values.emplace_back("eval/loss", r.evaluation->loss);
      for (const auto& [name, loss] : r.evaluation->domains) values.emplace_back("eval/loss_" + name, loss);
    }
    events_->add(r.step, values);
    events_->flush();
  }

  Trainer& trainer_;
  const Dataset& data_;
  const Dataset* held_out_;
  const TrainOptions& options_;
  RunFolder& folder_;
  const RunHooks& hooks_;
  parallel::Comm* const world_;  // null for a process alone
  const bool first_;             // logs and checkpoints are written here
  std::optional<StepLog> log_;
  std::optional<EventFile> events_;
  RunResult result_;
  bool new_best_ = false;  // by the step that was just done
  double last_ = 0;        // when the step that is timed began
};

}  // namespace

TrainOptions load_options(const std::filesystem::path& folder) {
  const std::string where = run_file(folder).string();
  return options_from_json(json_read::object(io::read_json(where), "options", where), where);
}

RunState load_run_state(const std::filesystem::path& folder) {
  const std::string where = run_file(folder).string();
  const json_read::Json run = io::read_json(where), &state = json_read::object(run, "state", where);
  RunState s;
  s.position = json_read::get<Index>(state, "position", where);
  s.tokens = json_read::get<Index>(state, "tokens", where);
  s.best_loss = json_read::get<double>(state, "best_loss", where);
  s.best_step = json_read::get<Index>(state, "best_step", where);
  if (s.position < 0 || s.tokens < 0)
    fail(ErrorCode::kFormat, "{}: position {} after {} tokens; the checkpoint is damaged", where, s.position, s.tokens);
  return s;
}

RunResult run(Trainer& trainer, const Dataset& data, const Dataset* held_out, const TrainOptions& options,
              RunFolder& folder, RunState state, const RunHooks& hooks) {
  return Loop(trainer, data, held_out, options, folder, state, hooks).run();
}

}  // namespace dsmoe::train
