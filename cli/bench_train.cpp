// dsmoe bench train: whole training steps (forward, backward, AdamW) on random tokens, beside the measured peak.
#include "cli/bench_train.h"

#include <fmt/format.h>
#include <malloc.h>

#include <fstream>
#include <memory>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/option_flags.h"
#include "cli/output.h"
#include "cli/ranges.h"
#include "cli/table.h"
#include "core/device.h"
#include "core/memory.h"
#include "core/random.h"
#include "model/plan.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/peak.h"
#include "train/memory.h"
#include "train/trainer.h"

namespace dsmoe::cli {

namespace {

struct TrainResult {
  std::string dtype;
  double step_seconds = 0, tokens_per_second = 0, flops = 0, peak = 0;
  double memory = 0, state = 0, activations = 0;  // bytes

  double share() const { return flops / peak; }
};

// The tiny model at twice its width, with 32 experts in each of its four layers.
ModelConfig default_model() {
  ModelConfig c = ModelConfig::preset("tiny");
  c.hidden_size = 256;
  c.moe_intermediate_size = 128;
  c.n_routed_experts = 32;
  c.first_k_dense_replace = 0;
  c.max_position_embeddings = 4096;
  return c;
}

// The most memory that this process has had since the last reset, without what it had then; 0 where the system does
// not tell.
class PeakMemory {
 public:
  PeakMemory() {
    release_kept_memory();
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << "5";
    before_ = field("VmHWM:");
  }
  double bytes() const { return before_ > 0 ? field("VmHWM:") - before_ : 0; }

 private:
  static double field(const std::string& name) {
    std::ifstream in("/proc/self/status");
    for (std::string word; in >> word;)
      if (double kib = 0; word == name && in >> kib) return kib * 1024;
    return 0;
  }
  double before_ = 0;
};

TrainResult measure(Context& ctx, const ModelConfig& c, const BenchTrainFlags& o, const std::string& dtype) {
  TrainResult r{.dtype = dtype};
  const DType type = *option_value<DType>(dtype);
  const PeakMemory memory;
  train::Trainer trainer(ctx, c, random_weights(c, 1, type, ctx), o.options(type));
  const std::vector<train::Batch> batches = o.batches(c);
  std::vector<double> seconds;
  for (int i = -2; i < o.repeat; ++i) {
    r.peak = std::max(r.peak, cpu::peak_flops(ctx, type, 0.02));
    const double start = now_seconds();
    trainer.step(batches);
    if (i >= 0) seconds.push_back(now_seconds() - start);
  }
  const auto tokens = static_cast<double>(o.tokens());
  r.step_seconds = median(seconds);
  r.tokens_per_second = tokens / r.step_seconds;
  r.flops = r.tokens_per_second * static_cast<double>(training_flops(c, o.length));
  r.memory = memory.bytes();
  r.state = static_cast<double>(trainer.state_bytes());
  r.activations = static_cast<double>(train::kept_activation_bytes(c, type, o.batch, o.length, o.where.train.recompute));
  return r;
}

void run(const BenchTrainFlags& o) {
  if (!o.preset.empty() && !o.config.empty()) throw UsageError("give only one of --preset and --config");
  ModelConfig c = !o.preset.empty()   ? ModelConfig::preset(o.preset)
                  : !o.config.empty() ? ModelConfig::load(o.config)
                                      : default_model();
  if (o.layers > 0) c.num_hidden_layers = o.layers;
  c.validate();
  if (o.where.device.value_or(device::available() ? Device::kCuda : Device::kCpu) == Device::kCuda)
    return bench_train_on_gpu(o, c);
  Context ctx(o.where.threads);
  std::vector<TrainResult> results;
  for (const std::string& dtype : o.dtypes) results.push_back(measure(ctx, c, o, dtype));
  if (o.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const TrainResult& r : results)
      rows.push_back({{"dtype", r.dtype},
                      {"step_ms", r.step_seconds * 1e3},
                      {"tokens_per_second", r.tokens_per_second},
                      {"gflops", r.flops * 1e-9},
                      {"peak_gflops", r.peak * 1e-9},
                      {"share_of_peak", r.share()},
                      {"memory_bytes", r.memory},
                      {"state_bytes", r.state},
                      {"activation_bytes", r.activations}});
    print_json({{"parameters", count_parameters(c).total},
                {"batch_size", o.batch},
                {"seq_len", o.length},
                {"grad_accum", o.passes},
                {"threads", ctx.threads()},
                {"kernels", cpu::kernels().name},
                {"flops_per_token", training_flops(c, o.length)},
                {"results", rows}});
    return;
  }
  Table table({"dtype", "ms/step", "tok/s", "GFLOP/s", "peak", "of peak", "memory", "needed", "of needed"});
  for (const TrainResult& r : results)
    table.row({r.dtype, fmt::format("{:.1f}", r.step_seconds * 1e3),
               thousands(static_cast<std::int64_t>(r.tokens_per_second)), fmt::format("{:.0f}", r.flops * 1e-9),
               fmt::format("{:.0f}", r.peak * 1e-9), fmt::format("{:.0f}%", 100 * r.share()),
               r.memory > 0 ? human_bytes(r.memory) : "unknown", human_bytes(r.state + r.activations),
               r.memory > 0 ? fmt::format("{:.2f}", r.memory / (r.state + r.activations)) : "unknown"});
  print(table.str());
  print(
      fmt::format("\n{} parameters, {} x {} sequences of {} tokens a step, {} threads, {} kernels; medians of {} steps.\n"
                  "A token takes {}, forward and backward. Needed: weights, gradients, moments and kept activations.\n",
                  human_count(static_cast<double>(count_parameters(c).total)), o.passes, o.batch, o.length, ctx.threads(),
                  cpu::kernels().name, o.repeat, human_flops(static_cast<double>(training_flops(c, o.length)))));
}

}  // namespace

train::TrainOptions BenchTrainFlags::options(DType dtype) const {
  train::TrainOptions t;
  t.dtype = dtype;
  t.batch_size = batch;
  t.seq_len = length;
  t.grad_accum = passes;
  t.recompute = where.train.recompute;
  t.warmup_steps = 0;
  t.lr = 1e-4;
  return t;
}

std::vector<train::Batch> BenchTrainFlags::batches(const ModelConfig& c) const {
  std::vector<train::Batch> all;
  for (Index pass = 0; pass < passes; ++pass) {
    train::Batch& b = all.emplace_back(train::Batch{.sequences = batch, .length = length});
    const Philox random(1, 2 + static_cast<std::uint64_t>(pass));
    for (Index i = 0; i < 2 * batch * length; ++i)
      (i % 2 == 0 ? b.ids : b.targets)
          .push_back(static_cast<std::int32_t>(
              random.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(c.vocab_size))));
  }
  return all;
}

void add_bench_train(CLI::App& bench) {
  auto options = std::make_shared<BenchTrainFlags>();
  BenchTrainFlags& o = *options;
  CLI::App* command = add_command(bench, "train", "Benchmark training steps: forward, backward and AdamW");
  command->add_option("--preset", o.preset, "Known architecture (default: a small one)");
  command->add_option("--config", o.config, "Architecture from a config.json");
  command->add_option("--layers", o.layers, "So many layers instead of its own (0: its own)")
      ->check(in_range(kNotNegative))
      ->capture_default_str();
  command->add_option("--dtype", o.dtypes, "Dtype: f32, bf16 or both, comma-separated")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--batch-size", o.batch, "Sequences per forward and backward pass")
      ->check(in_range(kPositive))
      ->capture_default_str();
  command->add_option("--seq-len", o.length, "Tokens per sequence")->check(in_range(kPositive))->capture_default_str();
  command->add_option("--grad-accum", o.passes, "Gradient accumulation: passes per optimizer step")
      ->check(in_range(kPositive))
      ->capture_default_str();
  add_flags(*command, o.where.train, {.only = {"recompute"}});
  command->add_option("-r,--repetitions", o.repeat, "Timed steps")->check(in_range(kPositive))->capture_default_str();
  add_flags(
      *command, o.where,
      {.only = {"device", "threads"}, .help = {{"device", "Where the model is trained (auto: a GPU if there is one)"}}});
  command->add_flag("--json", o.json, "Print the results as JSON");
  command->footer("Example:\n  dsmoe bench train --dtype f32");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
