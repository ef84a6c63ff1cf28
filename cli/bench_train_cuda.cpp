// dsmoe bench train --device cuda: training steps on a GPU beside its peak and a large product by cuBLASLt, and where the
// time of a step goes.
#include <fmt/format.h>

#include "cli/bench.h"
#include "cli/bench_train.h"
#include "cli/cuda_machine.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/table.h"
#include "core/device.h"
#include "core/timeline.h"
#include "model/plan.h"
#include "ops/cuda/device.h"
#include "train/memory.h"
#include "train/trainer.h"

namespace dsmoe::cli {

namespace {

struct GpuTrainResult {
  std::string dtype;
  double step_seconds = 0, tokens_per_second = 0, flops = 0;
  double product = 0, peak = 0;                       // FLOP/s; peak 0: not known
  double memory = 0, state = 0, predicted = 0;        // bytes
  std::vector<std::pair<std::string, double>> kinds;  // seconds of a step
};

// Of the data sheet, dense: for the devices that this program has been measured on.
double datasheet_flops(DType dtype) {
  const std::string name = cuda::describe_device();
  const bool hopper = name.find("H200") != std::string::npos || name.find("H100") != std::string::npos;
  return !hopper ? 0 : dtype == DType::kBF16 ? 989.5e12 : 67e12;
}

GpuTrainResult measure(const ModelConfig& c, const BenchTrainFlags& o, const std::string& dtype) {
  GpuTrainResult r{.dtype = dtype};
  const DType type = *option_value<DType>(dtype);
  Context ctx(o.where.threads, Backend::kCuda);
  const train::TrainOptions options = o.options(type);
  r.predicted = static_cast<double>(train::gpu_training_bytes(c, options));
  train::check_gpu_memory(c, options);
  train::Trainer trainer(ctx, c, benchmark_weights(c, type, ctx), options);
  const std::vector<train::Batch> batches = o.batches(c);
  device::reset_peak();
  const auto finish_all = [&] {
    while (trainer.launched() > 0) trainer.finish();
    trainer.model().finish_updates();
    ctx.synchronize();
  };
  double began = 0;
  for (int i = -2; i < o.repeat; ++i) {
    if (i == 0) {
      finish_all();
      began = now_seconds();
    }
    trainer.launch(batches);
    if (trainer.launched() > 1) trainer.finish();
  }
  finish_all();
  r.step_seconds = (now_seconds() - began) / o.repeat;
  r.memory = static_cast<double>(device::usage().peak);
  {
    trainer.step(batches);  // whose update is under way when the next one begins
    Timeline timeline;
    trainer.step(batches);
    mark(ctx, "end");
    r.kinds = timeline.seconds();
  }
  r.tokens_per_second = static_cast<double>(o.tokens()) / r.step_seconds;
  r.flops = r.tokens_per_second * static_cast<double>(training_flops(c, o.length));
  r.state = static_cast<double>(trainer.state_bytes());
  r.peak = datasheet_flops(type);
  return r;
}

void print_as_json(const std::vector<GpuTrainResult>& results, const ModelConfig& c, const BenchTrainFlags& o) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const GpuTrainResult& r : results) {
    nlohmann::ordered_json kinds = nlohmann::ordered_json::object();
    for (const auto& [name, seconds] : r.kinds) kinds[name] = seconds * 1e3;
    rows.push_back({{"dtype", r.dtype},
                    {"step_ms", r.step_seconds * 1e3},
                    {"tokens_per_second", r.tokens_per_second},
                    {"tflops", r.flops * 1e-12},
                    {"datasheet_tflops", r.peak * 1e-12},
                    {"share_of_datasheet", r.peak > 0 ? r.flops / r.peak : 0},
                    {"product_tflops", r.product * 1e-12},
                    {"share_of_product", r.flops / r.product},
                    {"peak_bytes", r.memory},
                    {"predicted_bytes", r.predicted},
                    {"state_bytes", r.state},
                    {"ms", kinds}});
  }
  print_json({{"device_name", cuda::describe_device()},
              {"parameters", count_parameters(c).total},
              {"batch_size", o.batch},
              {"seq_len", o.length},
              {"grad_accum", o.passes},
              {"flops_per_token", training_flops(c, o.length)},
              {"results", rows}});
}

void print_as_table(const std::vector<GpuTrainResult>& results, const ModelConfig& c, const BenchTrainFlags& o) {
  Table table({"dtype", "ms/step", "tok/s", "TFLOP/s", "of peak", "of a product", "memory", "predicted"});
  for (const GpuTrainResult& r : results)
    table.row({r.dtype, fmt::format("{:.1f}", r.step_seconds * 1e3),
               thousands(static_cast<std::int64_t>(r.tokens_per_second)), fmt::format("{:.1f}", r.flops * 1e-12),
               r.peak > 0 ? fmt::format("{:.1f}%", 100 * r.flops / r.peak) : "unknown",
               fmt::format("{:.1f}%", 100 * r.flops / r.product), human_bytes(r.memory), human_bytes(r.predicted)});
  print(table.str());
  for (const GpuTrainResult& r : results) {
    double all = 0;
    for (const auto& kind : r.kinds) all += kind.second;
    Table times({fmt::format("a step in {}", r.dtype), "ms", ""});
    for (const auto& [name, seconds] : r.kinds)
      times.row({name, fmt::format("{:.2f}", seconds * 1e3), fmt::format("{:.1f}%", 100 * seconds / all)});
    print("\n" + times.str());
  }
  print(fmt::format(
      "\n{} parameters, {} x {} sequences of {} tokens a step, on {}; means of {} steps after two.\n"
      "A token takes {}, forward and backward. Products of 8192 x 8192 (f32: 4096), measured in this run: "
      "{:.0f} TFLOP/s.\n",
      human_count(static_cast<double>(count_parameters(c).total)), o.passes, o.batch, o.length, cuda::describe_device(),
      o.repeat, human_flops(static_cast<double>(training_flops(c, o.length))), results.back().product * 1e-12));
}

}  // namespace

void bench_train_on_gpu(const BenchTrainFlags& o, const ModelConfig& c) {
  std::vector<GpuTrainResult> results;
  for (const std::string& dtype : o.dtypes) {
    results.push_back(measure(c, o, dtype));
    device::release_cached();
    results.back().product = matrix_flops(*option_value<DType>(dtype)).sustained;
  }
  o.json ? print_as_json(results, c, o) : print_as_table(results, c, o);
}

}  // namespace dsmoe::cli
