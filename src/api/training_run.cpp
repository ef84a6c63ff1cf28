#include <nlohmann/json.hpp>

#include "api/model_impl.h"
#include "core/fail.h"
#include "core/json_read.h"
#include "core/threads.h"
#include "dsmoe/trainer.h"
#include "formats/folder_export.h"
#include "formats/model_source.h"
#include "model/plan.h"
#include "ops/cpu/peak.h"
#include "parallel/mesh.h"
#include "parallel/same.h"
#include "parallel/world.h"
#include "train/loop.h"
#include "train/memory.h"
#include "train/setup.h"

namespace dsmoe::train {

namespace {

// A path may have bytes that are no text.
std::string fact_of(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// All that must be the same on every rank. How many threads compute changes no bit.
parallel::Facts facts_of(const RunSetup& setup) {
  parallel::Facts facts = {{"command", "train"}};
  const auto add = [&](const nlohmann::ordered_json& options) {
    for (const auto& [name, value] : options.items()) facts.emplace_back(name, fact_of(value));
  };
  add({{"model", setup.model}, {"preset", setup.preset}, {"config", setup.config}, {"out", setup.out}});
  add({{"resume", setup.resume}, {"tokenizer", setup.tokenizer}, {"expert-parallel", setup.expert_parallel}});
  add({{"zero", setup.zero}, {"no-overlap", setup.no_overlap}});
  add({{"partial-sums", setup.partial_sums}, {"given", setup.given}});
  add({{"device", setup.device ? static_cast<int>(*setup.device) : -1}});
  add(to_json(setup.train));
  const BalanceOptions& b = setup.balance;
  const auto number = [](const auto& value) { return value ? fmt::format("{}", *value) : std::string(); };
  facts.insert(facts.end(), {{"aux-loss-alpha", number(b.aux_loss_alpha)},
                             {"balance", b.balance ? option_name(*b.balance) : ""},
                             {"device-aux-alpha", number(b.device_aux_alpha)},
                             {"devices", number(b.devices)},
                             {"max-groups", number(b.max_groups)},
                             {"router-z-loss", number(b.router_z_loss)}});
  return facts;
}

// What the files have in them: paths say nothing where ranks have file systems of their own.
parallel::Facts contents_of(const Start& start) {
  parallel::Facts facts;
  const json_read::Json config = json_read::parse_object<json_read::Json>(start.config.to_json(), "config.json");
  const nlohmann::ordered_json options = to_json(start.options);
  for (const auto& [name, value] : config.items()) facts.emplace_back("config " + name, value.dump());
  for (const auto& [name, value] : options.items()) facts.emplace_back(name, value.dump());
  const std::string weights = start.resumed ? fingerprint(*ModelSource::open(*start.resumed)) : start.origin.weights;
  facts.insert(facts.end(), {{"weights with the fingerprint", weights},
                             {"a tokenizer with the fingerprint", start.origin.tokenizer},
                             {"data with the fingerprint", start.origin.data}});
  return facts;
}

// The ranks that this process trains with; null for one alone.
std::shared_ptr<const parallel::Mesh> mesh_of(const RunSetup& setup) {
  const std::shared_ptr<parallel::Comm> world = parallel::world();
  if (world->alone()) {
    require(setup.expert_parallel == 1, "expert-parallel is {}, but there is one process; start {} of them with mpirun",
            setup.expert_parallel, setup.expert_parallel);
    return nullptr;
  }
  parallel::require_same(*world, facts_of(setup));
  if (setup.device == Device::kCuda) parallel::link_gpus_of_world();
  auto mesh = std::make_shared<parallel::Mesh>(parallel::make_mesh(world, setup.expert_parallel));
  mesh->partial_sums = setup.partial_sums;
  return mesh;
}

// Ranks of one machine share its processors, unless mpirun has already given each its own.
int threads_of(const RunSetup& setup, const parallel::Mesh* mesh) {
  if (mesh == nullptr || setup.threads > 0) return setup.threads;
  return parallel::threads_per_rank(ThreadPool::default_size());
}

}  // namespace

struct TrainingRun::Impl {
  Impl(const RunSetup& setup, const SetupHooks& hooks) : mesh(mesh_of(setup)), host(threads_of(setup, mesh.get())) {
    mesh ? set_up_in_turn(setup, hooks) : set_up(setup, hooks);
    if (device_of(setup) == Device::kCuda) gpu = std::make_unique<Context>(setup.threads, Backend::kCuda);
    trainer.emplace(gpu ? *gpu : host, start.config, std::move(start.weights), start.options, mesh,
                    Sharing{setup.zero, !setup.no_overlap});
    if (!start.resumed) return;
    trainer->load_state(*start.resumed);
    state = load_run_state(*start.resumed);
  }

  ExpertShare share() const { return mesh ? ExpertShare{mesh->experts->rank(), mesh->experts->size()} : ExpertShare{}; }

  // Ranks train on CPUs unless they are told otherwise: they could not agree by each looking at its own GPU.
  Device device_of(const RunSetup& setup) const {
    if (mesh) return setup.device.value_or(Device::kCpu);
    return training_device(setup.device, start.config, start.options);
  }

  void set_up(const RunSetup& setup, const SetupHooks& hooks) {
    folder.emplace(setup.out);
    start = set_up_training(setup, *folder, host, hooks, share());
  }

  // Rank 0 first: it makes the folder, repairs what a killed run left and writes the token cache. The others then find all
  // that in place.
  void set_up_in_turn(const RunSetup& setup, const SetupHooks& hooks) {
    parallel::Comm& world = *mesh->world;
    if (world.rank() == 0) set_up(setup, hooks);
    const std::string last = world.broadcast(start.resumed ? start.resumed->string() : "", 0);
    if (world.rank() > 0) {
      folder.emplace(setup.out,
                     RunFolder::Follower{last.empty() ? std::nullopt : std::optional<std::filesystem::path>(last)});
      start = set_up_training(setup, *folder, host, hooks, share());
    }
    require(start.options.batch_size >= world.size(),
            "batch-size is {}, but {} ranks share a batch; give each at least one sequence", start.options.batch_size,
            world.size());
    // Also waits until all have looked at the folder as it was: rank 0 begins to write into it after this.
    parallel::require_same(world, contents_of(start), parallel::kSameFiles);
  }

  std::shared_ptr<const parallel::Mesh> mesh;  // null for a process alone
  Context host;
  std::unique_ptr<Context> gpu;  // where the model is trained, unless on the CPU
  std::optional<RunFolder> folder;
  Start start;
  std::optional<Trainer> trainer;
  RunState state;
};

TrainingRun::TrainingRun(const RunSetup& setup, const SetupHooks& hooks) {
  setup.validate();  // before the folder is made
  // An Error where there is no GPU, before data is read. Ranks choose theirs first.
  if (setup.device == Device::kCuda && !parallel::started_as_rank()) Context(1, Backend::kCuda);
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
                                      options(), *impl_->folder, impl_->state, all);
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
