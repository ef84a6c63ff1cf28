// dsmoe bench layer: forward and backward of one DeepSeekMoE layer with random weights and natural routing.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <string>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/table.h"
#include "core/fail.h"
#include "core/random.h"
#include "core/threads.h"
#include "dsmoe/moe.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/peak.h"

namespace dsmoe::cli {

namespace {

struct Options {
  std::vector<Index> tokens = {512};
  MoeConfig config;
  std::string dtype = "f32";
  int threads = 0;
  int repeat = 5;
  bool backward = false;
  bool check = true;
  bool json = false;
};

struct Result {
  Index tokens;
  bool backward;         // forward and backward, or forward alone
  double seconds;        // median
  double flops;          // of one pass
  double weight_bytes;   // of the experts that were chosen: each is read once at least (thrice with backward)
  double peak;           // FLOP/s, measured between the runs
  double bandwidth;      // bytes/s

  double rate() const { return flops / seconds; }
  double bound() const { return std::max(flops / peak, weight_bytes / bandwidth); }  // seconds
};

// Uniform numbers: fast to make, and as good as any for timing.
Tensor uniform(Context& ctx, DType dtype, Shape shape, float scale, std::uint64_t stream) {
  Tensor t(DType::kF32, shape);
  float* to = t.data<float>();
  constexpr Index kPiece = 1 << 16;
  const Philox rng(1, stream);
  ctx.pool().run((t.numel() + kPiece - 1) / kPiece, [&](Index task, int) {
    for (Index i = task * kPiece; i < std::min(t.numel(), (task + 1) * kPiece); i += 4) {
      const auto words = rng.block(static_cast<std::uint64_t>(i / 4));
      for (Index j = 0; j < 4 && i + j < t.numel(); ++j)
        to[i + j] = scale * (static_cast<float>(words[static_cast<std::size_t>(j)]) * 0x1p-31f - 1.0f);
    }
  });
  return t.to(dtype);
}

MoeWeights make_weights(Context& ctx, const MoeConfig& c, DType dtype) {
  std::uint64_t stream = 0;
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.hidden_size));
  const auto expert = [&](Index width) {
    return ExpertTensors{uniform(ctx, dtype, {width, c.hidden_size}, scale, ++stream),
                         uniform(ctx, dtype, {width, c.hidden_size}, scale, ++stream),
                         uniform(ctx, dtype, {c.hidden_size, width}, scale, ++stream)};
  };
  MoeWeights w;
  w.gate = uniform(ctx, dtype, {c.routed_experts, c.hidden_size}, scale, ++stream);
  for (Index e = 0; e < c.routed_experts; ++e) w.routed.push_back(expert(c.expert_size));
  if (c.shared_experts > 0) w.shared = expert(c.shared_experts * c.expert_size);
  return w;
}

double relative_error(const Tensor& got, const Tensor& want) {
  const Tensor a = got.to(DType::kF32), b = want.to(DType::kF32);
  double difference = 0, norm = 0;
  for (Index i = 0; i < b.numel(); ++i) {
    const double d = static_cast<double>(std::as_const(a).data<float>()[i]) - std::as_const(b).data<float>()[i];
    difference += d * d;
    norm += static_cast<double>(std::as_const(b).data<float>()[i]) * std::as_const(b).data<float>()[i];
  }
  return std::sqrt(difference / norm);
}

// A fast result that is wrong is worth nothing: two tokens through the plain reference first.
double check_against_reference(Context& ctx, const MoeLayer& layer, const Options& options, DType dtype) {
  Context ref(1, Backend::kRef);
  const Tensor x = uniform(ctx, dtype, {2, layer.config().hidden_size}, 1.0f, 777);
  const Tensor dy = uniform(ctx, dtype, {2, layer.config().hidden_size}, 1.0f, 778);
  const MoeForward got = layer.forward(ctx, x, {.training = options.backward});
  const MoeForward want = layer.forward(ref, x, {.training = options.backward});
  double error = relative_error(got.y, want.y);
  if (options.backward) {
    MoeGradients got_grads(layer.config()), want_grads(layer.config());
    error = std::max(error, relative_error(layer.backward(ctx, dy, got, got_grads), layer.backward(ref, dy, want, want_grads)));
    error = std::max(error, relative_error(got_grads.gate, want_grads.gate));
    if (layer.config().shared_experts > 0)
      error = std::max(error, relative_error(got_grads.shared.down_proj, want_grads.shared.down_proj));
  }
  // f32: sums of thousands of terms; bf16: a few roundings to 8 bits.
  const double limit = dtype == DType::kF32 ? 1e-5 : 3e-2;
  if (!(error <= limit))
    fail(ErrorCode::kInternal, "the layer is off from its reference by {:.2g} (limit {:.0g}); no speed is reported", error, limit);
  return error;
}

Result measure(Context& ctx, const MoeLayer& layer, const Options& options, Index tokens, bool backward, double bandwidth) {
  const MoeConfig& c = layer.config();
  const DType dtype = layer.weights().routed.front().gate_proj.dtype();
  const Tensor x = uniform(ctx, dtype, {tokens, c.hidden_size}, 1.0f, 5), dy = uniform(ctx, dtype, {tokens, c.hidden_size}, 1.0f, 6);
  std::unique_ptr<MoeGradients> grads;
  if (backward) grads = std::make_unique<MoeGradients>(c);

  std::vector<double> seconds;
  double peak = 0;
  MoeForward out;
  for (int i = -1; i < options.repeat; ++i) {  // the first run warms up
    peak = std::max(peak, cpu::peak_flops(ctx, dtype));
    const double start = now_seconds();
    out = layer.forward(ctx, x, {.training = backward});
    if (backward) layer.backward(ctx, dy, out, *grads);
    if (i >= 0) seconds.push_back(now_seconds() - start);
  }
  std::vector<bool> used(static_cast<std::size_t>(c.routed_experts));
  for (const std::int32_t e : std::as_const(out.routing.experts).span<std::int32_t>()) used[static_cast<std::size_t>(e)] = true;
  const auto experts = static_cast<double>(std::count(used.begin(), used.end(), true) + c.shared_experts);
  const double matrix = 3.0 * static_cast<double>(c.hidden_size * c.expert_size);
  const double passes = backward ? 3 : 1;
  return {.tokens = tokens,
          .backward = backward,
          .seconds = median(seconds),
          .flops = passes * 2 * static_cast<double>(tokens) *
                   (static_cast<double>(c.slots()) * matrix + static_cast<double>(c.routed_experts * c.hidden_size)),
          // Backward reads the weights once more, and reads and writes their f32 gradients.
          .weight_bytes = experts * matrix * (backward ? 2.0 * static_cast<double>(size_of(dtype)) + 8 : static_cast<double>(size_of(dtype))),
          .peak = peak,
          .bandwidth = bandwidth};
}

void print_results(const Options& o, int threads, double error, const std::vector<Result>& results) {
  const MoeConfig& c = o.config;
  if (o.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Result& r : results)
      rows.push_back({{"tokens", r.tokens},
                      {"pass", r.backward ? "forward+backward" : "forward"},
                      {"seconds", r.seconds},
                      {"tokens_per_second", static_cast<double>(r.tokens) / r.seconds},
                      {"gflops", r.rate() * 1e-9},
                      {"peak_gflops", r.peak * 1e-9},
                      {"weight_gb_per_second", r.weight_bytes / r.seconds * 1e-9},
                      {"read_gb_per_second", r.bandwidth * 1e-9},
                      {"share_of_peak", r.rate() / r.peak},
                      {"share_of_bound", r.bound() / r.seconds}});
    print_json({{"hidden_size", c.hidden_size},
                {"expert_size", c.expert_size},
                {"routed_experts", c.routed_experts},
                {"experts_per_token", c.experts_per_token},
                {"shared_experts", c.shared_experts},
                {"dtype", o.dtype},
                {"threads", threads},
                {"kernels", cpu::kernels().name},
                {"error_against_reference", o.check ? nlohmann::ordered_json(error) : nlohmann::ordered_json()},
                {"results", rows}});
    return;
  }
  print(fmt::format("One layer: D {}, F {}, E {}, K {}, S {}; {}, {} thread{}, {} kernels{}\n\n", c.hidden_size, c.expert_size,
                    c.routed_experts, c.experts_per_token, c.shared_experts, o.dtype, threads, threads == 1 ? "" : "s",
                    cpu::kernels().name, o.check ? fmt::format(" (off from the reference by {:.1e})", error) : ""));
  Table table({"tokens", "pass", "ms", "tok/s", "GFLOP/s", "of peak", "GB/s", "of read", "of bound"});
  for (const Result& r : results)
    table.row({std::to_string(r.tokens), r.backward ? "forward+backward" : "forward", fmt::format("{:.2f}", r.seconds * 1e3),
               fmt::format("{:.0f}", static_cast<double>(r.tokens) / r.seconds), fmt::format("{:.1f}", r.rate() * 1e-9),
               fmt::format("{:.0f}%", 100 * r.rate() / r.peak), fmt::format("{:.1f}", r.weight_bytes / r.seconds * 1e-9),
               fmt::format("{:.0f}%", 100 * r.weight_bytes / r.seconds / r.bandwidth),
               fmt::format("{:.0f}%", 100 * r.bound() / r.seconds)});
  print(table.str());
  print(fmt::format("\nMeasured in this run: {:.0f} GFLOP/s {} multiply-adds, {:.1f} GB/s reading memory. The bound is the larger of\n"
                    "the two times; GB/s counts the weights of the chosen experts{}.\n",
                    results.front().peak * 1e-9, o.dtype, results.front().bandwidth * 1e-9,
                    o.backward ? " and their gradients" : ""));
}

void run(const Options& o) {
  o.config.validate();
  for (const Index t : o.tokens)
    if (t < 1) throw UsageError("--tokens must be at least 1");
  const DType dtype = o.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  Context ctx(o.threads);
  const MoeLayer layer(o.config, make_weights(ctx, o.config, dtype));
  const double error = o.check ? check_against_reference(ctx, layer, o, dtype) : 0;
  const double bandwidth = cpu::read_bandwidth(ctx);
  std::vector<Result> results;
  for (const Index tokens : o.tokens) {
    results.push_back(measure(ctx, layer, o, tokens, false, bandwidth));
    if (o.backward) results.push_back(measure(ctx, layer, o, tokens, true, bandwidth));
  }
  print_results(o, ctx.threads(), error, results);
}

}  // namespace

void add_bench_layer(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  // The layer of deepseek-moe-16b.
  o.config.hidden_size = 2048, o.config.expert_size = 1408, o.config.routed_experts = 64;
  o.config.experts_per_token = 6, o.config.shared_experts = 2;
  CLI::App* layer = bench.add_subcommand("layer", "One DeepSeekMoE layer on random weights (default: that of deepseek-moe-16b)");
  layer->add_option("--tokens", o.tokens, "Tokens per pass; several separated by commas")->delimiter(',')->capture_default_str();
  layer->add_option("--hidden-size", o.config.hidden_size, "Model width D")->capture_default_str();
  layer->add_option("--expert-size", o.config.expert_size, "Width F of one expert")->capture_default_str();
  layer->add_option("--experts", o.config.routed_experts, "Routed experts E")->capture_default_str();
  layer->add_option("--top-k", o.config.experts_per_token, "Routed experts per token K")->capture_default_str();
  layer->add_option("--shared", o.config.shared_experts, "Shared experts S")->capture_default_str();
  layer->add_option("--dtype", o.dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}))->capture_default_str();
  layer->add_option("-t,--threads", o.threads, "Threads; 0: one per core")->capture_default_str();
  layer->add_option("--repeat", o.repeat, "Timed runs, of which the median counts")->check(CLI::PositiveNumber)->capture_default_str();
  layer->add_flag("--backward", o.backward, "Also forward and backward together");
  layer->add_flag("!--no-check", o.check, "Skip the comparison with the plain reference");
  layer->add_flag("--json", o.json, "Print the results as JSON");
  layer->footer("Example:\n  dsmoe bench layer --tokens 1,16,512 --dtype bf16");
  layer->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
