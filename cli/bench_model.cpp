// dsmoe bench model: prompt processing and generation speed of a whole model, in the columns of llama-bench, with the
// bound beside each; and what it takes to start.
#include "cli/bench_model.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include "api/model_impl.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/ranges.h"
#include "cli/table.h"
#include "infer/session.h"
#include "io/mapped_file.h"
#include "model/plan.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/peak.h"

namespace dsmoe::cli {

ModelWork::ModelWork(const Transformer& model) {
  const ModelConfig& c = model.config();
  std::map<DType, double> by_dtype;
  for (const Parameter& p : parameter_list(c)) {
    const DType dtype = model.weights().view(p).tensor.dtype();
    const auto size = static_cast<double>(row_bytes(dtype, p.shape.numel()));
    parameters += p.shape.numel();
    bytes += size;
    by_dtype[dtype] += size;
    if (p.in(ParameterGroup::kEmbedding) && !c.tie_word_embeddings) continue;
    const bool routed = p.in(ParameterGroup::kRoutedExperts);
    if (routed) routed_bytes += size;
    const double share = routed ? static_cast<double>(c.experts_per_token()) / static_cast<double>(c.routed_experts()) : 1;
    const bool head = p.in(ParameterGroup::kHead) || p.in(ParameterGroup::kEmbedding);
    (head ? head_flops : flops_per_token) += 2 * share * static_cast<double>(p.shape.numel());
    bytes_per_token += share * size;
  }
  for (const auto& [dtype, size] : by_dtype)
    if (size > by_dtype[stored]) stored = dtype;
}

namespace {

struct Result {
  std::string test;
  Index tokens;
  std::vector<double> rates;  // tokens per second, one per run
  double bound;               // tokens per second

  double deviation() const {
    double mean = 0, square = 0;
    for (const double r : rates) mean += r / static_cast<double>(rates.size());
    for (const double r : rates) square += (r - mean) * (r - mean);
    return rates.size() > 1 ? std::sqrt(square / static_cast<double>(rates.size() - 1)) : 0;
  }
};

// Bytes of a line such as "VmRSS:     4321 kB" of this process; 0 when unknown.
double memory_of(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return 1024 * std::stod(line.substr(key.size() + 1));
  return 0;
}

void drop_model_from_cache(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return io::drop_from_cache(path);
  for (const auto& entry : std::filesystem::directory_iterator(path)) io::drop_from_cache(entry.path());
}

class Bench {
 public:
  explicit Bench(const BenchModelOptions& o)
      : o_(o),
        ctx_(o.model.session.threads),
        began_(start()),
        loaded_(o.model.open()),
        model_(*loaded_->impl().transformer),
        work_(model_) {
    const double loaded = now_seconds();
    infer::Session session(ctx_, model_, {.context = 1, .kv_type = o.model.session.kv_type});
    session.feed(random_ids(model_.config(), 1));
    load_seconds_ = loaded - began_;
    first_token_seconds_ = now_seconds() - began_;
  }

  void run() {
    const std::optional<KvType> cache = o_.model.session.kv_type;
    for (const Index n : o_.prompt) {
      if (n <= 0) continue;
      const std::vector<std::int32_t> ids = random_ids(model_.config(), n);
      measure(
          fmt::format("pp{}", n), n,
          [&] {
            return static_cast<double>(n) * peak_ / (work_.flops_per_token * static_cast<double>(n) + work_.head_flops);
          },
          [&] {
            infer::Session session(ctx_, model_, {.context = n, .kv_type = cache});
            const double began = now_seconds();
            session.feed(ids);
            return now_seconds() - began;
          });
    }
    for (const Index n : o_.generate) {
      if (n <= 0) continue;
      const std::vector<std::int32_t> ids = random_ids(model_.config(), n);
      measure(
          fmt::format("tg{}", n), n, [&] { return bandwidth_ / work_.bytes_per_token; },
          [&] {
            infer::Session session(ctx_, model_, {.context = n, .kv_type = cache});
            const double began = now_seconds();
            for (const std::int32_t id : ids) session.feed(std::span(&id, 1));
            return now_seconds() - began;
          });
    }
  }

  void print_results() const { o_.json ? print_as_json() : print_as_table(); }

 private:
  double start() const {
    if (o_.cold) drop_model_from_cache(o_.model.path);
    return now_seconds();
  }

  template <class Bound, class Pass>
  void measure(std::string test, Index tokens, Bound&& bound, Pass&& pass) {
    Result r{std::move(test), tokens, {}, 0};
    for (int i = -1; i < o_.repeat; ++i) {
      peak_ = std::max(peak_, peak());
      bandwidth_ = std::max(bandwidth_, cpu::read_bandwidth(ctx_, 0.05));
      const double seconds = pass();
      if (i >= 0) r.rates.push_back(static_cast<double>(tokens) / seconds);
    }
    r.bound = bound();
    results_.push_back(std::move(r));
  }

  // Of the products that most of the weights go through.
  double peak() { return cpu::peak_flops(ctx_, is_quantized(work_.stored) ? work_.stored : model_.dtype(), 0.02); }

  void print_as_json() const {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Result& r : results_)
      rows.push_back({{"test", r.test},
                      {"tokens_per_second", median(r.rates)},
                      {"stddev", r.deviation()},
                      {"bound_tokens_per_second", r.bound},
                      {"share_of_bound", median(r.rates) / r.bound}});
    print_json({{"model", o_.model.path},
                {"parameters", work_.parameters},
                {"bytes", work_.bytes},
                {"active_bytes_per_token", work_.bytes_per_token},
                {"dtype", to_string(work_.stored)},
                {"threads", ctx_.threads()},
                {"kernels", cpu::kernels().name},
                {"peak_gflops", peak_ * 1e-9},
                {"read_gb_per_second", bandwidth_ * 1e-9},
                {"cold", o_.cold},
                {"load_seconds", load_seconds_},
                {"first_token_seconds", first_token_seconds_},
                {"resident_bytes", memory_of("VmRSS")},
                {"peak_resident_bytes", memory_of("VmHWM")},
                {"results", rows}});
  }

  void print_as_table() const {
    const std::string name = std::filesystem::path(o_.model.path).lexically_normal().filename().string();
    Table table({"model", "size", "params", "backend", "threads", "test", "t/s", "bound t/s", "of bound"});
    for (const Result& r : results_)
      table.row({fmt::format("{} {}", name, to_string(work_.stored)), human_bytes(work_.bytes),
                 human_count(static_cast<double>(work_.parameters)), "CPU", std::to_string(ctx_.threads()), r.test,
                 fmt::format("{:.2f} ± {:.2f}", median(r.rates), r.deviation()), fmt::format("{:.0f}", r.bound),
                 fmt::format("{:.0f}%", 100 * median(r.rates) / r.bound)});
    print(table.str());
    print(fmt::format(
        "\nMedians of {} runs; {} kernels. Measured in this run: {:.0f} {}/s multiply-adds, {:.1f} GB/s reading memory.\n"
        "pp is bound by the first, tg by reading the active weights ({}) once per token.\n"
        "First token {:.2f} s after the start{} ({:.2f} s of it loading); {} resident, {} at most.\n",
        o_.repeat, cpu::kernels().name, peak_ * 1e-9, is_quantized(work_.stored) ? "GOP" : "GFLOP", bandwidth_ * 1e-9,
        human_bytes(work_.bytes_per_token), first_token_seconds_, o_.cold ? " with no page of the model in memory" : "",
        load_seconds_, human_bytes(memory_of("VmRSS")), human_bytes(memory_of("VmHWM"))));
  }

  const BenchModelOptions& o_;
  Context ctx_;
  double began_;
  std::shared_ptr<Model> loaded_;
  Transformer& model_;
  ModelWork work_;
  double load_seconds_ = 0, first_token_seconds_ = 0, peak_ = 0, bandwidth_ = 0;
  std::vector<Result> results_;
};

void run(const BenchModelOptions& o) {
  if (o.model.path.empty() == o.preset.empty()) throw UsageError("give either --model or --preset");
  if (o.preset.empty() && !o.type.empty()) throw UsageError("--type is for --preset; a model has its own");
  if (o.model.load.device == Device::kCuda) return bench_model_on_gpu(o);
  if (!o.preset.empty() || o.sequences != std::vector<Index>{1})
    throw UsageError("--preset and --n-sequences are for --device cuda");
  Bench bench(o);
  bench.run();
  bench.print_results();
}

}  // namespace

void add_bench_model(CLI::App& bench) {
  auto options = std::make_shared<BenchModelOptions>();
  options->model.load.device = Device::kCpu;
  BenchModelOptions& o = *options;
  CLI::App* command = add_command(bench, "model", "Benchmark prompt processing and generation of a model");
  o.model.add(*command)->required(false);
  command->add_option("--preset", o.preset, "Random weights of a known architecture, made on the GPU, instead of a model");
  command->add_option("--type", o.type,
                      "With --preset: quantized weights as in a GGUF file of this type (q8_0, q4_k_m, ...)");
  o.model.add_threads(*command);
  add_flags(*command, o.model.session, {.only = {"kv-type"}});
  command->add_option("-p,--n-prompt", o.prompt, "Prompt lengths in tokens; comma-separated (0: none)")
      ->check(in_range(kNotNegative))
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("-n,--n-gen", o.generate, "Tokens to generate; comma-separated (0: none)")
      ->check(in_range(kNotNegative))
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("-b,--n-sequences", o.sequences, "Sequences to generate at the same time; comma-separated")
      ->check(in_range(kPositive))
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("-r,--repetitions", o.repeat, "Timed runs; the median is reported")
      ->check(in_range(kPositive))
      ->capture_default_str();
  command->add_flag("--cold", o.cold, "Evict the model from the page cache first, and time the first token from there");
  command->add_flag("--json", o.json, "Print the results as JSON");
  command->footer(
      "Examples:\n  dsmoe bench model -m MODEL -p 512 -n 64\n"
      "  dsmoe bench model --device cuda --preset deepseek-moe-16b --dtype bf16 -p 512,4096 -n 128 -b 1,8,32");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
