// dsmoe bench model: prompt processing and generation speed of a whole model, in the columns of llama-bench, with the
// bound beside each; and what it takes to start.
#include "cli/bench_model.h"

#include <fmt/format.h>

#include <algorithm>
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
    double size = 0;
    for (const ModelTensors::Stored& s : model.weights().stored(p)) {
      size += static_cast<double>(s.bytes());
      by_dtype[s.dtype] += static_cast<double>(s.bytes());
    }
    parameters += p.shape.numel();
    bytes += size;
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

double ModelWork::bytes_of_step(const ModelConfig& c, Index sequences) const {
  const double share =
      c.routed_experts() > 0 ? static_cast<double>(c.experts_per_token()) / static_cast<double>(c.routed_experts()) : 0;
  const double in_use = 1 - std::pow(1 - share, static_cast<double>(sequences));
  return bytes_per_token + (in_use - share) * routed_bytes;
}

BenchSequences::BenchSequences(const Transformer& model, Index count, Index tokens, DType cache) : model_(model) {
  const auto pool = model.make_kv_pool(count * KvPool::pages_for(tokens) * KvPool::kPageTokens, cache);
  for (Index i = 0; i < count; ++i) all_.emplace_back(pool);
}

Tensor BenchSequences::feed(Context& ctx, std::span<const std::int32_t> ids, Index tokens) {
  ForwardBatch batch;
  for (std::size_t i = 0; i < all_.size(); ++i)
    batch.add(ctx, all_[i], ids.subspan(i * static_cast<std::size_t>(tokens), static_cast<std::size_t>(tokens)));
  return model_.logits(ctx, batch);
}

namespace {

// What the machine was measured to do between two runs. It changes from minute to minute where others use it too.
struct Limits {
  double peak, bandwidth;  // multiply-adds counted twice, bytes; per second
};

struct Result {
  std::string test;
  Index tokens;
  std::vector<double> rates, bounds, shares;  // of each run: tokens per second, its bound, rate over bound

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
        began_(start()),
        loaded_(o.model.open()),
        ctx_(o.model.session.threads),
        model_(*loaded_->impl().transformer),
        work_(model_) {
    const double loaded = now_seconds();
    infer::Session session(ctx_, model_, session_options(1));
    session.feed(random_ids(model_.config(), 1));
    load_seconds_ = loaded - began_;
    first_token_seconds_ = now_seconds() - began_;
  }

  void run() {
    for (const Index b : o_.sequences) {
      for (const Index n : o_.prompt)
        if (n > 0) prompt(n, b);
      for (const Index n : o_.generate)
        if (n > 0) generate(n, b);
    }
  }

  void print_results() const { o_.json ? print_as_json() : print_as_table(); }

 private:
  double start() const {
    if (o_.cold) drop_model_from_cache(o_.model.path);
    return now_seconds();
  }

  void prompt(Index n, Index b) {
    const std::vector<std::int32_t> ids = random_ids(model_.config(), n * b);
    const auto sequences = static_cast<double>(b), tokens = static_cast<double>(n) * sequences;
    measure(
        bench_label("pp", n, b), n * b,
        [&](const Limits& l) { return tokens * l.peak / (work_.flops_per_token * tokens + work_.head_flops * sequences); },
        [&] {
          // One prompt in chunks, as a user's.
          if (b == 1) return timed(infer::Session(ctx_, model_, session_options(n)), [&](auto& one) { one.feed(ids); });
          return timed(BenchSequences(model_, b, n, kv_dtype()), [&](auto& all) { all.feed(ctx_, ids, n); });
        });
  }

  // A step of several sequences is bound by what it reads or, when they are many, by its multiply-adds.
  void generate(Index n, Index b) {
    const std::vector<std::int32_t> ids = random_ids(model_.config(), n * b);
    const auto sequences = static_cast<double>(b);
    const double bytes = work_.bytes_of_step(model_.config(), b);
    measure(
        bench_label("tg", n, b), n * b,
        [&](const Limits& l) {
          const double flops = (work_.flops_per_token + work_.head_flops) * sequences;
          return sequences / std::max(bytes / l.bandwidth, flops / l.peak);
        },
        [&] {
          return timed(BenchSequences(model_, b, n, kv_dtype()), [&](auto& all) {
            for (Index i = 0; i < n; ++i)
              all.feed(ctx_, std::span(ids).subspan(static_cast<std::size_t>(i * b), all.count()), 1);
          });
        });
  }

  SessionOptions session_options(Index context) const { return {.context = context, .kv_type = o_.model.session.kv_type}; }

  // Seconds of fn(state); making the state is not counted.
  template <class State, class Fn>
  static double timed(State state, Fn&& fn) {
    const double began = now_seconds();
    fn(state);
    return now_seconds() - began;
  }

  // A run is judged by the better of the limits right before and right after it.
  template <class Bound, class Pass>
  void measure(std::string test, Index tokens, Bound&& bound, Pass&& pass) {
    Result r{std::move(test), tokens};
    pass();  // warms up
    Limits before = limits();
    for (int i = 0; i < o_.repeat; ++i) {
      const double rate = static_cast<double>(tokens) / pass();
      const Limits after = limits();
      r.rates.push_back(rate);
      r.bounds.push_back(bound({std::max(before.peak, after.peak), std::max(before.bandwidth, after.bandwidth)}));
      r.shares.push_back(rate / r.bounds.back());
      before = after;
    }
    results_.push_back(std::move(r));
  }

  DType kv_dtype() const { return model_.kv_dtype(o_.model.session.kv_type); }

  // The peak is that of the products that most of the weights go through.
  Limits limits() {
    const DType products = is_quantized(work_.stored) ? work_.stored : model_.dtype();
    const Limits l = {cpu::peak_flops(ctx_, products, 0.02), cpu::read_bandwidth(ctx_, 0.05)};
    peak_.add(l.peak);
    bandwidth_.add(l.bandwidth);
    return l;
  }

  void print_as_json() const {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Result& r : results_)
      rows.push_back({{"test", r.test},
                      {"tokens_per_second", median(r.rates)},
                      {"stddev", r.deviation()},
                      {"bound_tokens_per_second", median(r.bounds)},
                      {"share_of_bound", median(r.shares)}});
    print_json({{"model", o_.model.path},
                {"parameters", work_.parameters},
                {"bytes", work_.bytes},
                {"active_bytes_per_token", work_.bytes_per_token},
                {"dtype", to_string(work_.stored)},
                {"threads", ctx_.threads()},
                {"kernels", cpu::kernels().name},
                {"kv_type", to_string(kv_dtype())},
                {"peak_gflops", peak_.most * 1e-9},
                {"lowest_peak_gflops", peak_.least * 1e-9},
                {"read_gb_per_second", bandwidth_.most * 1e-9},
                {"lowest_read_gb_per_second", bandwidth_.least * 1e-9},
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
                 fmt::format("{:.2f} ± {:.2f}", median(r.rates), r.deviation()), fmt::format("{:.0f}", median(r.bounds)),
                 fmt::format("{:.0f}%", 100 * median(r.shares))});
    print(table.str());
    print(fmt::format(
        "\n{}; {} kernels, KV cache in {}. Measured before and after every run: {:.0f} to {:.0f} {}/s multiply-adds,\n"
        "{:.1f} to {:.1f} GB/s reading memory. A run is bound by the better of its two neighbours: pp by the first, tg by\n"
        "reading the active weights once per step ({} for one sequence), of many sequences by the first as well.\n"
        "First token {:.2f} s after the start{} ({:.2f} s of it loading); {} resident, {} at most.\n",
        o_.repeat == 1 ? "One run of each" : fmt::format("Medians of {} runs", o_.repeat), cpu::kernels().name,
        to_string(kv_dtype()), peak_.least * 1e-9, peak_.most * 1e-9, is_quantized(work_.stored) ? "GOP" : "GFLOP",
        bandwidth_.least * 1e-9, bandwidth_.most * 1e-9, human_bytes(work_.bytes_per_token), first_token_seconds_,
        o_.cold ? " with no page of the model in memory" : "", load_seconds_, human_bytes(memory_of("VmRSS")),
        human_bytes(memory_of("VmHWM"))));
    if (std::any_of(results_.begin(), results_.end(), [](const Result& r) { return median(r.shares) > 1; }))
      print("A share over 100%: the machine was faster during those runs than in the measurements around them.\n");
  }

  struct Range {
    double least = 0, most = 0;
    void add(double value) {
      least = least > 0 ? std::min(least, value) : value;
      most = std::max(most, value);
    }
  };

  const BenchModelOptions& o_;
  double began_;
  std::shared_ptr<Model> loaded_;
  Context ctx_;
  Transformer& model_;
  ModelWork work_;
  double load_seconds_ = 0, first_token_seconds_ = 0;
  Range peak_, bandwidth_;
  std::vector<Result> results_;
};

void run(const BenchModelOptions& o) {
  if (o.model.path.empty() == o.preset.empty()) throw UsageError("give either --model or --preset");
  const auto none = [](const std::vector<Index>& lengths) {
    return std::all_of(lengths.begin(), lengths.end(), [](Index n) { return n == 0; });
  };
  if (none(o.prompt) && none(o.generate)) throw UsageError("there is nothing to measure; give --n-prompt or --n-gen");
  if (o.preset.empty() && !o.type.empty()) throw UsageError("--type is for --preset; a model has its own");
  if (o.model.load.device == Device::kCuda) return bench_model_on_gpu(o);
  if (!o.preset.empty()) throw UsageError("--preset is for --device cuda; on the CPU make a model with dsmoe init");
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
