#include "train/trainer.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "core/fail.h"
#include "core/log.h"
#include "train/memory.h"

namespace dsmoe::train {

namespace {

ModelConfig checked(const Context& ctx, ModelConfig config, const TrainOptions& options, const RankLayout& layout) {
  if (config.attention_dropout > 0)
    fail(ErrorCode::kUnsupported, "attention_dropout is {}; training has no dropout, write 0 in config.json",
         config.attention_dropout);
  config.validate();
  options.validate();
  if (ctx.device() == Device::kCuda) check_gpu_memory(config, options, layout);
  return config;
}

std::vector<bool> frozen(const std::vector<Parameter>& parameters, const std::vector<std::string>& patterns) {
  std::vector<bool> result(parameters.size());
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (::fnmatch(pattern.c_str(), parameters[i].name.c_str(), 0) != 0) continue;
      result[i] = any = true;
    }
    require(any, "freeze \"{}\" matches no parameter; a name is for example {}", pattern,
            parameters[parameters.size() / 2].name);
  }
  return result;
}

bool finite(const Tensor& t) {
  for (const float x : t.span<float>())
    if (!std::isfinite(x)) return false;
  return true;
}

void add(BalanceLosses& sum, const BalanceLosses& x, double share) {
  sum.sequence += share * x.sequence;
  sum.batch += share * x.batch;
  sum.device += share * x.device;
  sum.router_z += share * x.router_z;
}

void set_load_extremes(const std::vector<std::vector<std::int64_t>>& load, StepResult& result) {
  bool first = true;
  for (const auto& layer : load) {
    if (layer.empty()) continue;
    double total = 0;
    for (const std::int64_t n : layer) total += static_cast<double>(n);
    const auto [least, most] = std::minmax_element(layer.begin(), layer.end());
    const double even = total / static_cast<double>(layer.size());
    const double low = static_cast<double>(*least) / even, high = static_cast<double>(*most) / even;
    result.load_min = first ? low : std::min(result.load_min, low);
    result.load_max = first ? high : std::max(result.load_max, high);
    first = false;
  }
}

void add(std::vector<std::vector<std::int64_t>>& sum, const std::vector<std::vector<std::int64_t>>& load) {
  if (sum.empty()) sum.resize(load.size());
  for (std::size_t l = 0; l < load.size(); ++l) {
    sum[l].resize(load[l].size());
    for (std::size_t e = 0; e < load[l].size(); ++e) sum[l][e] += load[l][e];
  }
}

}  // namespace

namespace {

ExpertShare share_of(const parallel::Mesh* mesh) {
  return mesh ? ExpertShare{mesh->experts->rank(), mesh->experts->size()} : ExpertShare{};
}

RankLayout layout_of(const parallel::Mesh* mesh, const Sharing& sharing) {
  if (mesh == nullptr) return {};
  return {mesh->world->size(), mesh->experts->size(), sharing.zero, mesh->partial_sums, Device::kCuda, sharing.overlap};
}

// Adapters need all gradients of the weights that they are added to, and theirs are small.
Sharing sharing_of(Sharing sharing, const TrainOptions& options) {
  if (options.lora_rank > 0) sharing = {std::min<Index>(sharing.zero, 1), false};
  return sharing;
}

}  // namespace

Trainer::Trainer(Context& ctx, ModelConfig config, ModelWeights weights, const TrainOptions& options,
                 std::shared_ptr<const parallel::Mesh> mesh, Sharing sharing)
    : ctx_(ctx),
      options_(options),
      mesh_(mesh && !mesh->alone() ? std::move(mesh) : nullptr),
      overwrites_(ctx.device() == Device::kCuda),
      schedule_(options.lr_schedule),
      model_{checked(ctx, config, options, layout_of(mesh_.get(), sharing_of(sharing, options))),
             owned_copy(config, weights, options.dtype, ctx.device(), share_of(mesh_.get())), mesh_},
      trained_(mesh_, sharing_of(sharing, options)),
      grads_(zero_gradients(config, ctx.device(), share_of(mesh_.get()), trained_.shares_gradients())),
      runs_ahead_(ctx.device() == Device::kCuda && !mesh_ && options.lora_rank == 0 && options.bias_update_speed == 0),
      scale_(ctx.zeros(DType::kF64, {1})) {
  require(options.bias_update_speed == 0 || config.selection_bias(),
          "bias-update-speed is {}, but the model has no selection bias (topk_method \"noaux_tc\" in config.json)",
          options.bias_update_speed);
  const std::vector<Parameter> parameters = parameter_list(model_.config());
  const std::vector<bool> fixed = frozen(parameters, options.freeze);
  const bool adapters = options.lora_rank > 0;
  if (adapters) {
    std::unordered_set<std::string> kept;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (!fixed[i] && model_.weights().holds(parameters[i])) kept.insert(parameters[i].name);
    lora_ = Lora(ctx, model_.config(), model_.weights(), options.lora_rank, options.lora_alpha, options.seed,
                 [&](const Parameter& p) { return kept.contains(p.name); });
    trained_.add(ctx, lora_.entries([&](const Parameter& p) { return is_spread(p); }));
  }
  std::vector<TrainedTensors::Entry> entries;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (p.traits.gradient && model_.weights().holds(p))
      entries.push_back({p.name, model_.weights().view(p), grads_.view(p), p.traits.decay,
                         /*in_model=*/true, /*trained=*/!adapters && !fixed[i], is_spread(p),
                         p.layer >= 0                       ? 1 + p.layer
                         : p.in(ParameterGroup::kEmbedding) ? 0
                                                            : model_.stages() - 1});
  }
  trained_.add(ctx, std::move(entries));
  trained_parameters_ = trained_.trained_numbers();
  require(trained_parameters_ > 0, "nothing is left to train: every parameter is frozen");
}

Trainer::~Trainer() { model_.finish_updates(); }

std::unique_ptr<Trainer::Flight> Trainer::flight_of(std::span<const Batch> passes) {
  std::unique_ptr<Flight> flight = landed_ ? std::move(landed_) : std::make_unique<Flight>();
  flight->step = step_;
  flight->passes.assign(passes.begin(), passes.end());
  flight->losses.resize(passes.size());
  flight->sums = {}, flight->result = {}, flight->settled = false;
  return flight;
}

// Forward and backward of all passes.
void Trainer::launch_passes(Flight& flight) {
  StepSums& sums = flight.sums;
  for (const Batch& b : flight.passes) {
    sums.tokens += b.sequences * b.length;
    sums.targets += std::count_if(b.targets.begin(), b.targets.end(), [](std::int32_t id) { return id != kNoTarget; });
  }
  if (mesh_) add_up_targets(*mesh_->world, sums);
  require(sums.targets > 0, "step {}: none of the {} tokens has a target", flight.step, sums.tokens);
  for (std::size_t i = 0; i < flight.passes.size(); ++i) {
    const Batch& b = flight.passes[i];
    Tensor losses = mesh_ ? ctx_.empty(DType::kF64, {static_cast<Index>(b.ids.size())}) : Tensor();
    TrainingPass pass{.loss_scale = static_cast<float>(1.0 / static_cast<double>(sums.targets)),
                      .aux_scale = static_cast<float>(1.0 / static_cast<double>(flight.passes.size())),
                      .recompute = options_.recompute,
                      .add_grads = !overwrites_ || (i > 0 && !trained_.shares_gradients()),
                      .token_losses = mesh_ ? &losses : nullptr};
    trained_.begin_pass(!overwrites_ || i > 0);
    if (trained_.sums_early(/*last_pass=*/i + 1 == flight.passes.size()))
      pass.done = [&](Index stage) { trained_.gradients_done(ctx_, stage); };
    model_.loss_and_gradients(ctx_, b.ids, b.targets, b.length, pass, grads_, flight.losses[i]);
    if (trained_.shares_gradients()) trained_.sum_gradients(ctx_);
    if (mesh_) sums.pass_losses.push_back(sum_of_all(losses, b.sequences * b.length).first);
  }
}

// The step's losses and load, of all ranks.
void Trainer::settle_losses(Flight& flight) {
  StepSums& sums = flight.sums;
  for (LossLater& later : flight.losses) {
    const LossResult r = later.get(ctx_);
    if (!mesh_) sums.pass_losses.push_back(r.loss_sum);
    add(sums.balance, r.balance, 1.0 / static_cast<double>(flight.passes.size()));
    add(sums.load, r.load);
  }
  if (mesh_) add_up_rest(*mesh_->world, sums, wait_.gathered(*mesh_->world));
  flight.result.waited = sums.waited, flight.result.slowest_rank = sums.slowest_rank;
  flight.result.tokens = sums.tokens, flight.result.balance = sums.balance;
  for (const double loss : sums.pass_losses) flight.result.loss += loss / static_cast<double>(sums.targets);
  set_load_extremes(sums.load, flight.result);
}

void Trainer::settle_norm(Flight& flight) {
  const Tensor square = flight.square.get(ctx_);
  const double norm = std::sqrt(square.data<double>()[0]);
  if (!std::isfinite(norm)) fail(ErrorCode::kNumeric, "the norm of the gradients is {}", norm);
  flight.result.grad_norm = norm;
  flight.settled = true;
}

StepResult Trainer::step(std::span<const Batch> passes) {
  launch(passes);
  while (launched() > 1) static_cast<void>(finish());
  return finish();
}

void Trainer::launch(std::span<const Batch> passes) {
  std::unique_ptr<Flight> flight = flight_of(passes);
  flight->result.rate = learning_rate(schedule_, options_.lr, options_.warmup_steps, step_,
                                      options_.schedule_steps > 0 ? options_.schedule_steps : options_.steps);
  if (mesh_) wait_.begin(*mesh_->world);
  try {
    launch_passes(*flight);
    if (!runs_ahead_) settle_losses(*flight);
    if (!lora_.empty()) lora_.gradients(ctx_, grads_);
    if (!trained_.shares_gradients()) trained_.sum_gradients(ctx_);
    const Tensor square = trained_.gradient_square(ctx_);
    ops::clip_scale(ctx_, square, options_.clip, scale_);
    flight->square.begin(ctx_, square);
    if (!runs_ahead_) settle_norm(*flight);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNumeric) throw;
    fail_not_finite(std::move(flight), error.what());
  }
  update(flight->result);
  if (options_.bias_update_speed > 0) update_selection_bias(flight->sums.load);
  if (mesh_) wait_.end(*mesh_->world);
  flights_.push_back(std::move(flight));
  ++step_;
}

StepResult Trainer::finish() {
  require(!flights_.empty(), "no step was launched");
  std::unique_ptr<Flight> flight = std::move(flights_.front());
  flights_.pop_front();
  try {
    if (!flight->settled) settle_losses(*flight), settle_norm(*flight);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNumeric) throw;
    fail_not_finite(std::move(flight), error.what());
  }
  landed_ = std::move(flight);
  return landed_->result;
}

// AdamW; on a GPU under the forward pass that follows. Numbers are updated each on its own, so that makes no difference.
void Trainer::update(const StepResult& result) {
  const ops::AdamOptions options{.rate = result.rate,
                                 .beta1 = options_.beta1,
                                 .beta2 = options_.beta2,
                                 .epsilon = options_.epsilon,
                                 .weight_decay = options_.weight_decay,
                                 .scale = scale_,
                                 .step = step_ + 1,
                                 .clear = !overwrites_};
  if (runs_ahead_)
    model_.update(ctx_, [&](Index stage) { trained_.step(ctx_, options, stage); });
  else
    trained_.step(ctx_, options);
  if (!lora_.empty()) lora_.merge(ctx_, model_.weights());
}

// Wang et al. 2024 (auxiliary-loss-free balancing): an expert with more than the mean load becomes a little less likely
// to be chosen, one with less a little more.
void Trainer::update_selection_bias(const std::vector<std::vector<std::int64_t>>& load) {
  const auto speed = static_cast<float>(options_.bias_update_speed);
  for (std::size_t l = 0; l < load.size(); ++l) {
    if (load[l].empty()) continue;
    std::int64_t total = 0;
    for (const std::int64_t n : load[l]) total += n;
    const TensorView where(model_.weights().layers[l].gate_bias);
    Tensor bias = where.fetched();  // on the CPU the tensor itself
    for (std::size_t e = 0; e < load[l].size(); ++e) {
      const std::int64_t over = load[l][e] * static_cast<std::int64_t>(load[l].size()) - total;
      bias.data<float>()[e] -= speed * static_cast<float>((over > 0) - (over < 0));
    }
    if (ctx_.device() != Device::kCpu) where.assign(bias);
  }
}

void Trainer::fail_not_finite(std::unique_ptr<Flight> flight, const std::string& what) {
  step_ = flight->step;
  if (runs_ahead_) {
    // Steps that were launched after this one are over: they changed no weight, but wrote over its gradients, which are
    // computed again. So may they have found faults of their own.
    flights_.clear();
    const auto ignoring_faults = [&](auto work) {
      try {
        work();
        ctx_.synchronize();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kNumeric) throw;
      }
    };
    ignoring_faults([] {});
    flight->sums = {};
    ignoring_faults([&] { launch_passes(*flight); });
  }
  ctx_.fill_zero(scale_);
  std::string where;
  // Ranks compute together, and one alone may have found this: then nothing is run again.
  for (const Batch& b : mesh_ ? std::span<const Batch>() : std::span<const Batch>(flight->passes)) {
    Tensor losses = ctx_.empty(DType::kF32, {static_cast<Index>(b.ids.size())});
    Index layer = -2;
    try {
      const LayerProbe probe = [&](Index l, const Tensor& x) {
        if (layer == -2 && !finite(x)) layer = l;
      };
      model_.losses(ctx_, b.ids, b.targets, b.length, losses, {.layer = probe});
    } catch (const Error& error) {
      if (layer == -2) where = error.what();  // a gate's message names its layer
    }
    if (layer == -1) where = "the embedding of the tokens is not finite";
    if (layer >= 0) where = fmt::format("layer {} is the first whose output is not finite", layer);
    if (!where.empty()) break;
  }
  // All outputs are finite, so a gradient is not. Backward starts at the end of the model.
  const std::vector<Parameter> parameters = parameter_list(model_.config());
  for (auto p = parameters.rbegin(); p != parameters.rend() && where.empty(); ++p)
    if (!trained_.shares_gradients() && p->traits.gradient && grads_.holds(*p) && !finite(grads_.fetched(*p)))
      where = fmt::format("{}the gradient of {} is the first that is not finite",
                          p->layer >= 0 ? fmt::format("layer {}: ", p->layer) : "", p->name);
  fail(ErrorCode::kNumeric,
       "step {}: {}; {}; try a lower lr, more warmup-steps, a lower clip{}, or look at the data of this step", step_, what,
       !where.empty() ? where
       : mesh_        ? "see the other ranks"
                      : "the same step is finite when repeated",
       options_.dtype == DType::kBF16 ? ", dtype f32" : "");
}

Evaluation Trainer::evaluate(const Dataset& data, Index sequences) const {
  const std::span<const std::string> names = data.labels();
  std::vector<double> sum(names.size());
  std::vector<Index> count(names.size());
  double all = 0;
  Evaluation result;
  if (data.sequences() > 0) sequences = std::min(sequences, data.sequences());
  for (Index first = 0; first < sequences; first += options_.batch_size) {
    const Index here = std::min(options_.batch_size, sequences - first);
    const Batch b = data.batch(first, here);
    const auto [loss, each] = losses_of(data, b, first);
    all += loss;
    for (std::size_t i = 0; i < b.targets.size(); ++i) {
      if (b.targets[i] == kNoTarget) continue;
      ++result.tokens;
      if (b.labels.empty()) continue;
      sum.at(b.labels[i]) += each[i];
      ++count[b.labels[i]];
    }
  }
  result.loss = result.tokens > 0 ? all / static_cast<double>(result.tokens) : 0;
  for (std::size_t d = 0; d < names.size(); ++d)
    if (count[d] > 0) result.domains.emplace_back(names[d], sum[d] / static_cast<double>(count[d]));
  return result;
}

// The loss of a batch that starts at sequence `first`, and that of each of its tokens: every rank computes some.
std::pair<double, std::vector<float>> Trainer::losses_of(const Dataset& data, const Batch& b, Index first) const {
  if (!mesh_) {
    Tensor each = ctx_.empty(DType::kF32, {static_cast<Index>(b.ids.size())});
    const LossResult r = model_.losses(ctx_, b.ids, b.targets, b.length, each);
    const Tensor losses = ctx_.fetch(each);
    const std::span<const float> values = losses.span<float>();
    return {r.loss_sum, {values.begin(), values.end()}};
  }
  const RankBatch mine = batch_of_rank(*mesh_->world, data, first, b.sequences);
  Tensor each = ctx_.empty(DType::kF64, {static_cast<Index>(mine.batch.ids.size())});
  static_cast<void>(model_.losses(ctx_, mine.batch.ids, mine.batch.targets, mine.batch.length, each));
  const auto [sum, losses] = sum_of_all(each, mine.counted);
  return {sum, {losses.begin(), losses.end()}};
}

// Of the losses of the first `count` tokens here and those of the other ranks; and all of them.
std::pair<double, std::vector<double>> Trainer::sum_of_all(const Tensor& losses, Index count) const {
  const Tensor here = ctx_.fetch(losses);
  std::vector<double> all = mesh_->world->all_gather(here.span<double>().first(static_cast<std::size_t>(count)));
  const double sum = sum_of_losses(all, model_.config().vocab_size, ctx_.device());
  return {sum, std::move(all)};
}

Index Trainer::trained_parameters() const { return trained_parameters_; }

std::size_t Trainer::state_bytes() const {
  std::size_t bytes = trained_.bytes();
  std::unordered_set<const void*> gradients;  // layers may take turns with them
  for (const Parameter& p : parameter_list(model_.config())) {
    if (!model_.weights().holds(p)) continue;
    bytes += static_cast<std::size_t>(p.shape.numel()) * size_of(model_.dtype());
    if (!p.traits.gradient) continue;
    const Tensor tensor = grads_.view(p).tensor;
    if (gradients.insert(tensor.raw()).second) bytes += tensor.bytes();
  }
  return bytes;
}

}  // namespace dsmoe::train
