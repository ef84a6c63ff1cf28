// dsmoe bench model --device cuda: prompts and generation of a whole model on a GPU, alone and in batches, with the bound
// of each: the weights in use and the KV cache read once, or the multiply-adds.
#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "api/model_impl.h"
#include "cli/bench.h"
#include "cli/bench_model.h"
#include "cli/cuda_machine.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/table.h"
#include "core/device.h"
#include "core/fail.h"
#include "formats/gguf_types.h"
#include "model/modules.h"
#include "ops/cuda/device.h"

namespace dsmoe::cli {

namespace {

constexpr Index kContextBefore = 128;  // tokens in every sequence before it generates

struct Row {
  std::string test;
  Index sequences, tokens;      // tokens of all sequences
  std::vector<double> seconds;  // of a run
  double bound;                 // tokens per second

  double rate() const { return static_cast<double>(tokens) / median(seconds); }
};

class GpuBench {
 public:
  explicit GpuBench(const BenchModelOptions& o) : o_(o), ctx_(1, Backend::kCuda) {
    const double began = now_seconds();
    if (o.preset.empty()) {
      loaded_ = o.model.open();
      model_ = loaded_->impl().transformer;
    } else {
      const ModelConfig config = ModelConfig::preset(o.preset);
      model_ = std::make_shared<Transformer>(config, random_weights(config));
      ctx_.synchronize();
    }
    load_seconds_ = now_seconds() - began;
    cache_ = model_->kv_dtype(o.model.session.kv_type);
    peak_ = matrix_flops(model_->dtype()).sustained;
    bandwidth_ = copy_bandwidth();
  }

  void run() {
    const ModelWork work(*model_);
    for (const Index b : o_.sequences) {
      for (const Index n : o_.prompt)
        if (n > 0) prompt(work, n, b);
      for (const Index n : o_.generate)
        if (n > 0) generate(work, n, b);
    }
    o_.json ? print_as_json(work) : print_as_table(work);
  }

 private:
  // In the dtype asked for, or as a GGUF file of a type has them.
  ModelWeights random_weights(const ModelConfig& config) {
    if (o_.type.empty() || !is_quantized(gguf_file_type(o_.type).dtype))
      return benchmark_weights(config, o_.model.load.dtype.value_or(DType::kBF16), ctx_);
    std::map<std::pair<std::string_view, Index>, DType> dtypes;  // by role and layer
    for (const GgufTensor& t : gguf_layout(config, parameter_list(config)))
      dtypes[{t.role, t.layer}] = gguf_dtype(gguf_file_type(o_.type), config, t);
    return benchmark_weights(
        config,
        [&](const Parameter& p) {
          return dtypes.at({p.role, p.layer});
        },
        ctx_);
  }

  template <class Setup, class Pass>
  void measure(Row row, Setup&& setup, Pass&& pass) {
    for (int i = -1; i < o_.repeat; ++i) {
      auto state = setup();
      ctx_.synchronize();
      const double began = now_seconds();
      pass(state);
      ctx_.synchronize();
      if (i >= 0) row.seconds.push_back(now_seconds() - began);
    }
    rows_.push_back(std::move(row));
  }

  void prompt(const ModelWork& work, Index n, Index b) {
    const std::vector<std::int32_t> ids = random_ids(model_->config(), n * b);
    const auto tokens = static_cast<double>(n * b);
    const double flops = tokens * (work.flops_per_token + attention_flops(n)) + static_cast<double>(b) * work.head_flops;
    measure(
        {bench_label("pp", n, b), b, n * b, {}, tokens * peak_ / flops},
        [&] { return BenchSequences(*model_, b, n, cache_); }, [&](BenchSequences& all) { all.feed(ctx_, ids, n); });
  }

  void generate(const ModelWork& work, Index n, Index b) {
    const std::vector<std::int32_t> ids = random_ids(model_->config(), kContextBefore * b);
    const double bytes = work.bytes_of_step(model_->config(), b) +
                         static_cast<double>(b) * (kContextBefore + 0.5 * static_cast<double>(n)) * kv_bytes();
    measure(
        {bench_label("tg", n, b), b, n * b, {}, static_cast<double>(b) * bandwidth_ / bytes},
        [&] {
          BenchSequences all(*model_, b, kContextBefore + n, cache_);
          all.feed(ctx_, ids, kContextBefore);
          return all;
        },
        [&](BenchSequences& all) {
          for (Index i = 0; i < n; ++i) all.feed(ctx_, std::span(ids).first(all.count()), 1);
        });
  }

  // Per token of a prompt: scores and values of half its length on average.
  double attention_flops(Index n) const {
    double flops = 0;
    for (const LayerSpec& layer : model_->spec().layers) {
      const auto at = [&](Index context) { return multiply_adds(layer, model_->spec().width, context); };
      flops += static_cast<double>(at(n) - at(0));
    }
    return flops;
  }
  double kv_bytes() const {
    double bytes = 0;
    for (const LayerSpec& layer : model_->spec().layers) {
      const KvLayout kv = kv_layout(layer);
      bytes += static_cast<double>(row_bytes(cache_, kv.k_width) + row_bytes(cache_, kv.v_width));
    }
    return bytes;
  }

  void print_as_json(const ModelWork& work) const {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Row& r : rows_)
      rows.push_back({{"test", r.test},
                      {"sequences", r.sequences},
                      {"tokens_per_second", r.rate()},
                      {"seconds", median(r.seconds)},
                      {"bound_tokens_per_second", r.bound},
                      {"share_of_bound", r.rate() / r.bound}});
    print_json({{"model", name()},
                {"device_name", cuda::describe_device()},
                {"parameters", work.parameters},
                {"bytes", work.bytes},
                {"dtype", to_string(work.stored)},
                {"kv_dtype", to_string(cache_)},
                {"peak_tflops", peak_ * 1e-12},
                {"copy_gb_per_second", bandwidth_ * 1e-9},
                {"load_seconds", load_seconds_},
                {"peak_bytes", device::usage().peak},
                {"results", rows}});
  }

  void print_as_table(const ModelWork& work) const {
    Table table({"model", "size", "params", "backend", "test", "t/s", "bound t/s", "of bound"});
    for (const Row& r : rows_)
      table.row({fmt::format("{} {}", name(), to_string(work.stored)), human_bytes(work.bytes),
                 human_count(static_cast<double>(work.parameters)), "CUDA", r.test, fmt::format("{:.1f}", r.rate()),
                 fmt::format("{:.0f}", r.bound), fmt::format("{:.0f}%", 100 * r.rate() / r.bound)});
    print(table.str());
    print(
        fmt::format("\nMedians of {} runs on {}; every sequence generates after {} tokens. Measured in this run: {:.0f} "
                    "TFLOP/s, {:.0f} GB/s. {} of GPU memory at most.\n",
                    o_.repeat, cuda::describe_device(), kContextBefore, peak_ * 1e-12, bandwidth_ * 1e-9,
                    human_bytes(static_cast<double>(device::usage().peak))));
  }
  std::string name() const {
    return o_.preset.empty() ? std::filesystem::path(o_.model.path).lexically_normal().filename().string() : o_.preset;
  }

  const BenchModelOptions& o_;
  Context ctx_;
  std::shared_ptr<Model> loaded_;
  std::shared_ptr<Transformer> model_;
  DType cache_ = DType::kBF16;
  double load_seconds_ = 0, peak_ = 0, bandwidth_ = 0;
  std::vector<Row> rows_;
};

}  // namespace

void bench_model_on_gpu(const BenchModelOptions& o) {
  if (!cuda::available()) fail(ErrorCode::kUnsupported, "{}", cuda::describe_device());
  GpuBench(o).run();
}

}  // namespace dsmoe::cli
