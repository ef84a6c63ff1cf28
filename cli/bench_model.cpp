// dsmoe bench model: prompt processing and generation speed of a whole model, in the columns of llama-bench.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/table.h"
#include "core/random.h"
#include "model/plan.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/peak.h"

namespace dsmoe::cli {

namespace {

struct Options {
  ModelOptions model;
  std::vector<Index> prompt = {512}, generate = {64};
  int repeat = 5;
  bool json = false;
};

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

std::vector<std::int32_t> random_ids(const ModelConfig& c, Index n) {
  std::vector<std::int32_t> ids;
  const Philox rng(1, 2);
  for (Index i = 0; i < n; ++i)
    ids.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(c.vocab_size))));
  return ids;
}

// Multiply-adds per token outside the logits, which a prompt needs once; and the weight bytes one token reads.
struct Work {
  double flops_per_token = 0, head_flops = 0, bytes_per_token = 0;

  Work(const ModelConfig& c, DType dtype) {
    for (const Parameter& p : parameter_list(c)) {
      if (p.kind == ParameterKind::kEmbedding && !c.tie_word_embeddings) continue;
      double active = static_cast<double>(p.shape.numel());
      if (is_routed_expert(p.kind)) active *= static_cast<double>(c.experts_per_token()) / static_cast<double>(c.routed_experts());
      const bool head = p.kind == ParameterKind::kHead || p.kind == ParameterKind::kEmbedding;
      (head ? head_flops : flops_per_token) += 2 * active;
      bytes_per_token += active * static_cast<double>(size_of(dtype));
    }
  }
};

void run(const Options& o) {
  const Transformer model = o.model.load();
  const ModelConfig& c = model.config();
  Context ctx(o.model.threads);
  const Work work(c, model.dtype());
  double peak = 0, bandwidth = 0;
  std::vector<Result> results;
  const auto measure = [&](std::string test, Index tokens, auto bound, auto pass) {
    Result r{std::move(test), tokens, {}, 0};
    for (int i = -1; i < o.repeat; ++i) {
      peak = std::max(peak, cpu::peak_flops(ctx, model.dtype(), 0.02));
      bandwidth = std::max(bandwidth, cpu::read_bandwidth(ctx, 0.05));
      const double seconds = pass();
      if (i >= 0) r.rates.push_back(static_cast<double>(tokens) / seconds);
    }
    r.bound = bound();
    results.push_back(std::move(r));
  };
  const SessionOptions options = o.model.session();
  for (const Index n : o.prompt) {
    if (n <= 0) continue;
    const std::vector<std::int32_t> ids = random_ids(c, n);
    measure(
        fmt::format("pp{}", n), n,
        [&] { return static_cast<double>(n) * peak / (work.flops_per_token * static_cast<double>(n) + work.head_flops); },
        [&] {
          Session session(ctx, model, {.context = n, .cache_dtype = options.cache_dtype});
          const double start = now_seconds();
          session.feed(ids);
          return now_seconds() - start;
        });
  }
  for (const Index n : o.generate) {
    if (n <= 0) continue;
    const std::vector<std::int32_t> ids = random_ids(c, n);
    measure(
        fmt::format("tg{}", n), n, [&] { return bandwidth / work.bytes_per_token; },
        [&] {
          Session session(ctx, model, {.context = n, .cache_dtype = options.cache_dtype});
          const double start = now_seconds();
          for (const std::int32_t id : ids) session.feed(std::span(&id, 1));
          return now_seconds() - start;
        });
  }

  std::int64_t parameters = 0;
  for (const Parameter& p : parameter_list(c)) parameters += p.shape.numel();
  const std::string name = std::filesystem::path(o.model.folder).lexically_normal().filename().string();
  const double bytes = static_cast<double>(parameters) * static_cast<double>(size_of(model.dtype()));
  if (o.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Result& r : results)
      rows.push_back({{"test", r.test},
                      {"tokens_per_second", median(r.rates)},
                      {"stddev", r.deviation()},
                      {"bound_tokens_per_second", r.bound},
                      {"share_of_bound", median(r.rates) / r.bound}});
    print_json({{"model", o.model.folder},
                {"parameters", parameters},
                {"bytes", bytes},
                {"dtype", to_string(model.dtype())},
                {"threads", ctx.threads()},
                {"kernels", cpu::kernels().name},
                {"peak_gflops", peak * 1e-9},
                {"read_gb_per_second", bandwidth * 1e-9},
                {"results", rows}});
    return;
  }
  Table table({"model", "size", "params", "backend", "threads", "test", "t/s", "bound t/s", "of bound"});
  for (const Result& r : results)
    table.row({fmt::format("{} {}", name, to_string(model.dtype())), human_bytes(bytes), human_count(static_cast<double>(parameters)),
               "CPU", std::to_string(ctx.threads()), r.test, fmt::format("{:.2f} ± {:.2f}", median(r.rates), r.deviation()),
               fmt::format("{:.0f}", r.bound), fmt::format("{:.0f}%", 100 * median(r.rates) / r.bound)});
  print(table.str());
  print(fmt::format("\nMedians of {} runs; {} kernels. Measured in this run: {:.0f} GFLOP/s multiply-adds, {:.1f} GB/s reading memory.\n"
                    "pp is bound by the first, tg by reading the active weights once per token.\n",
                    o.repeat, cpu::kernels().name, peak * 1e-9, bandwidth * 1e-9));
}

}  // namespace

void add_bench_model(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = bench.add_subcommand("model", "Prompt processing and generation of a whole model");
  o.model.add(*command);
  command->add_option("--cache-dtype", o.model.cache_dtype, "Keep keys and values in f32 or bf16; auto: as the weights")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}));
  command->add_option("-p,--n-prompt", o.prompt, "Prompt tokens; several separated by commas, 0: none")->delimiter(',')->capture_default_str();
  command->add_option("-n,--n-gen", o.generate, "Generated tokens; several separated by commas, 0: none")->delimiter(',')->capture_default_str();
  command->add_option("-r,--repetitions", o.repeat, "Timed runs, of which the median counts")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_flag("--json", o.json, "Print the results as JSON");
  command->footer("Example:\n  dsmoe bench model -m MODEL -p 512 -n 64");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
