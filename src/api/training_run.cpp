#include "api/model_impl.h"
#include "core/fail.h"
#include "dsmoe/trainer.h"
#include "formats/folder_export.h"
#include "model/plan.h"
#include "ops/cpu/peak.h"
#include "train/loop.h"
#include "train/memory.h"
#include "train/setup.h"

namespace dsmoe::train {

struct TrainingRun::Impl {
  Impl(const RunSetup& setup, const SetupHooks& hooks)
      : host(setup.threads), folder(setup.out), start(set_up_training(setup, folder, host, hooks)) {
    if (training_device(setup.device, start.config, start.options) == Device::kCuda)
      gpu = std::make_unique<Context>(setup.threads, Backend::kCuda);
    trainer.emplace(gpu ? *gpu : host, start.config, std::move(start.weights), start.options);
    if (!start.resumed) return;
    trainer->load_state(*start.resumed);
    state = load_run_state(*start.resumed);
  }

  Context host;
  std::unique_ptr<Context> gpu;  // where the model is trained, unless on the CPU
  RunFolder folder;
  Start start;
  std::optional<Trainer> trainer;
  RunState state;
};

TrainingRun::TrainingRun(const RunSetup& setup, const SetupHooks& hooks) {
  setup.validate();                                               // before the folder is made
  if (setup.device == Device::kCuda) Context(1, Backend::kCuda);  // an Error where there is no GPU, before data is read
  impl_ = std::make_shared<Impl>(setup, hooks);
  if (steps_done() >= options().steps)
    fail(ErrorCode::kInvalidArgument, "{} has its {} steps already; set more steps to continue", setup.out, steps_done());
}
TrainingRun::~TrainingRun() = default;
TrainingRun::TrainingRun(TrainingRun&&) noexcept = default;

const TrainOptions& TrainingRun::options() const { return impl_->start.options; }
const std::optional<std::filesystem::path>& TrainingRun::resumed_from() const { return impl_->start.resumed; }
Index TrainingRun::steps_done() const { return impl_->trainer->steps_done(); }
Index TrainingRun::trained_parameters() const { return impl_->trainer->trained_parameters(); }

std::shared_ptr<const Model> TrainingRun::model() const {
  auto model = std::make_unique<Model::Impl>();
  model->transformer = std::shared_ptr<Transformer>(impl_, &impl_->trainer->model());
  model->tokenizer = impl_->start.tokenizer;
  model->generation = impl_->start.generation;
  return std::make_shared<Model>(std::move(model));
}

RunResult TrainingRun::run(const RunHooks& hooks) {
  RunHooks all = hooks;
  all.extra_files = [&](const std::filesystem::path& to) {
    write_companions(to, impl_->start.config, impl_->start.tokenizer, impl_->start.generation);
    impl_->start.origin.save(to);
    if (hooks.extra_files) hooks.extra_files(to);
  };
  const RunResult result = train::run(*impl_->trainer, *impl_->start.data.training, impl_->start.data.held_out.get(),
                                      options(), impl_->folder, impl_->state, all);
  impl_->state = result.state;
  return result;
}

std::optional<Evaluation> TrainingRun::evaluate() const {
  if (!impl_->start.data.held_out) return {};
  return impl_->trainer->evaluate(*impl_->start.data.held_out, options().eval_sequences);
}

double TrainingRun::flops_per_token() const {
  return static_cast<double>(training_flops(impl_->start.config, options().seq_len));
}

Device TrainingRun::device() const { return impl_->trainer->model().device(); }

double TrainingRun::measure_peak_flops(double seconds) const {
  return cpu::peak_flops(impl_->host, options().dtype, seconds);
}

}  // namespace dsmoe::train
