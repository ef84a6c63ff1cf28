// dsmoe bench layer: forward and backward of one DeepSeekMoE layer with random weights and natural routing.
#include "cli/bench_layer.h"

#include <fmt/format.h>

#include <memory>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/ranges.h"
#include "cli/table.h"

namespace dsmoe::cli {

namespace {

// What a device's numbers are read in, and what bounds them there.
struct Units {
  const char *time, *rate, *bytes;
  double time_scale, rate_scale, bytes_scale;
  int bytes_digits;
  const char *peak, *memory;
};
constexpr Units kCpuUnits{"ms", "GFLOP/s", "GB/s", 1e3, 1e-9, 1e-9, 1, "multiply-adds", "reading memory"};
constexpr Units kCudaUnits{"us", "TFLOP/s", "TB/s", 1e6, 1e-12, 1e-12, 2, "in a large matrix product", "copying memory"};

nlohmann::ordered_json to_json(const LayerResult& r) {
  nlohmann::ordered_json row = {{"tokens", r.tokens},
                                {"pass", r.backward ? "forward+backward" : "forward"},
                                {"gradients", r.backward ? to_string(r.gradients) : ""},
                                {"seconds", r.seconds},
                                {"tokens_per_second", static_cast<double>(r.tokens) / r.seconds},
                                {"gflops", r.rate() * 1e-9},
                                {"peak_gflops", r.peak * 1e-9},
                                {"weight_gb_per_second", r.weight_bytes / r.seconds * 1e-9},
                                {"read_gb_per_second", r.bandwidth * 1e-9},
                                {"bound_seconds", r.bound()},
                                {"share_of_peak", r.rate() / r.peak},
                                {"share_of_bound", r.bound() / r.seconds},
                                {"largest_expert_share", r.largest},
                                {"empty_experts", r.empty}};
  if (r.sustained_seconds > 0) {
    row["sustained_seconds"] = r.sustained_seconds;
    row["sustained_peak_gflops"] = r.sustained_peak * 1e-9;
    row["sustained_share_of_bound"] = r.sustained_bound() / r.sustained_seconds;
  }
  if (r.extra_bytes > 0) row["extra_bytes"] = r.extra_bytes;
  return row;
}

void print_report_json(const LayerOptions& o, const LayerReport& report) {
  const MoeConfig& c = o.config;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const LayerResult& r : report.results) rows.push_back(to_json(r));
  print_json({{"hidden_size", c.hidden_size},
              {"expert_size", c.expert_size},
              {"routed_experts", c.routed_experts},
              {"experts_per_token", c.experts_per_token},
              {"shared_experts", c.shared_experts},
              {"dtype", o.dtype_name},
              {"device", o.device},
              {"device_name", report.device},
              {"kernels", report.kernels},
              {"skew", o.skew},
              {"error_against_reference", o.check ? nlohmann::ordered_json(report.error) : nlohmann::ordered_json()},
              {"sample_output", report.sample},
              {"results", rows}});
}

void print_report(const LayerOptions& o, const LayerReport& report) {
  const MoeConfig& c = o.config;
  const Units& u = o.device == "cuda" ? kCudaUnits : kCpuUnits;
  print(fmt::format("One layer: D {}, F {}, E {}, K {}, S {}; {}, {}, {} kernels{}\n\n", c.hidden_size, c.expert_size,
                    c.routed_experts, c.experts_per_token, c.shared_experts, o.dtype_name, report.device, report.kernels,
                    o.check ? fmt::format(" (off from the reference by {:.1e})", report.error) : ""));
  const bool memory = o.backward && report.results.back().extra_bytes > 0;
  std::vector<std::string> header = {
      "tokens",  "pass", u.time, "tok/s", u.rate, "of peak", u.bytes, "of memory", fmt::format("bound {}", u.time),
      "of bound"};
  if (o.backward) header.insert(header.begin() + 2, "gradients");
  const bool sustained = report.results.front().sustained_seconds > 0;
  if (sustained) header.insert(header.end(), {fmt::format("sustained {}", u.time), "of its bound"});
  if (o.skew) header.insert(header.end(), {"largest", "empty"});
  if (memory) header.emplace_back("extra memory");
  Table table(header);
  for (const LayerResult& r : report.results) {
    std::vector<std::string> row = {std::to_string(r.tokens),
                                    r.backward ? "forward+backward" : "forward",
                                    fmt::format("{:.2f}", r.seconds * u.time_scale),
                                    fmt::format("{:.0f}", static_cast<double>(r.tokens) / r.seconds),
                                    fmt::format("{:.1f}", r.rate() * u.rate_scale),
                                    fmt::format("{:.0f}%", 100 * r.rate() / r.peak),
                                    fmt::format("{:.{}f}", r.weight_bytes / r.seconds * u.bytes_scale, u.bytes_digits),
                                    fmt::format("{:.0f}%", 100 * r.weight_bytes / r.seconds / r.bandwidth),
                                    fmt::format("{:.2f}", r.bound() * u.time_scale),
                                    fmt::format("{:.0f}%", 100 * r.bound() / r.seconds)};
    const char* const gradients = r.gradients == DType::kF32 ? "f32, added to" : "bf16, overwritten";
    if (o.backward) row.insert(row.begin() + 2, r.backward ? gradients : "");
    if (sustained)
      row.insert(row.end(), {fmt::format("{:.2f}", r.sustained_seconds * u.time_scale),
                             fmt::format("{:.0f}%", 100 * r.sustained_bound() / r.sustained_seconds)});
    if (o.skew) row.insert(row.end(), {fmt::format("{:.0f}%", 100 * r.largest), std::to_string(r.empty)});
    if (memory) row.push_back(r.extra_bytes > 0 ? human_bytes(r.extra_bytes) : "");
    table.row(std::move(row));
  }
  print(table.str());
  const LayerResult& first = report.results.front();
  print(
      fmt::format("\nMeasured in this run: {:.0f} {} {} {}{}, {:.{}f} {} {}. The bound is the larger of\n"
                  "the two times; {} counts the weights of the chosen experts{}.\n",
                  first.peak * u.rate_scale, u.rate, o.dtype_name, u.peak,
                  sustained ? fmt::format(" ({:.0f} sustained)", first.sustained_peak * u.rate_scale) : "",
                  first.bandwidth * u.bytes_scale, u.bytes_digits, u.bytes, u.memory, u.bytes,
                  o.backward ? " and their gradients" : ""));
}

void run(LayerOptions o) {
  const bool cuda = o.device == "cuda";
  o.config.validate();
  if (o.tokens.empty()) o.tokens = cuda ? std::vector<Index>{1, 8, 64, 256, 1024, 4096, 16384} : std::vector<Index>{512};
  if (o.dtype_name.empty()) o.dtype_name = cuda ? "bf16" : "f32";
  for (const Index t : o.tokens)
    if (t < 1) throw UsageError("--tokens must be at least 1");
  if (is_quantized(o.dtype()) && (cuda || o.backward)) throw UsageError("quantized weights are for the CPU, forward only");
  if (!cuda && o.path != "auto") throw UsageError("--path is for --device cuda");
  for (const DType dtype : o.gradients())
    if (dtype == DType::kBF16 && o.dtype() != DType::kBF16) throw UsageError("bf16 gradients need --dtype bf16");
  if (o.skew && o.config.routed_experts - kSkewEmpty < std::max<Index>(o.config.experts_per_token, 1))
    throw UsageError(fmt::format("--skew leaves {} experts empty: --experts must be at least {}", kSkewEmpty,
                                 kSkewEmpty + o.config.experts_per_token));
  const LayerReport report = cuda ? bench_layer_cuda(o) : bench_layer_cpu(o);
  o.json ? print_report_json(o, report) : print_report(o, report);
}

}  // namespace

void add_bench_layer(CLI::App& bench) {
  auto options = std::make_shared<LayerOptions>();
  LayerOptions& o = *options;
  // The layer of deepseek-moe-16b.
  o.config.hidden_size = 2048, o.config.expert_size = 1408, o.config.routed_experts = 64;
  o.config.experts_per_token = 6, o.config.shared_experts = 2;
  CLI::App* layer =
      add_command(bench, "layer", "Benchmark one MoE layer with random weights (default: deepseek-moe-16b's)");
  layer->add_option("--device", o.device, "Device: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  layer->add_option("--tokens", o.tokens, "Tokens per pass; comma-separated [512; cuda: 1,8,64,256,1024,4096,16384]")
      ->delimiter(',');
  layer->add_option("--hidden-size", o.config.hidden_size, "Hidden size (D)")->capture_default_str();
  layer->add_option("--expert-size", o.config.expert_size, "Intermediate size of an expert (F)")->capture_default_str();
  layer->add_option("--experts", o.config.routed_experts, "Routed experts (E)")->capture_default_str();
  layer->add_option("--top-k", o.config.experts_per_token, "Routed experts per token (K)")->capture_default_str();
  layer->add_option("--shared", o.config.shared_experts, "Shared experts (S)")->capture_default_str();
  layer
      ->add_option("--dtype", o.dtype_name,
                   "Dtype of the weights: f32, bf16 or, on the CPU, q8_0, q4_0, q5_0, q4_k, q5_k, q6_k [f32; cuda: bf16]")
      ->check(CLI::IsMember({"f32", "bf16", "q8_0", "q4_0", "q5_0", "q4_k", "q5_k", "q6_k"}));
  layer->add_option("--path", o.path, "CUDA kernels: auto, hopper, mma or plain")
      ->check(CLI::IsMember({"auto", "hopper", "mma", "plain"}))
      ->capture_default_str();
  layer
      ->add_option("-t,--threads", o.threads,
                   "CPU threads (0: one per physical core; of a hybrid processor, the fast ones)")
      ->capture_default_str();
  layer->add_option("--repeat", o.repeat, "Timed runs; the median is reported")
      ->check(in_range(kPositive))
      ->capture_default_str();
  layer->add_flag("--backward", o.backward, "Also measure forward + backward");
  layer
      ->add_option("--grad-dtype", o.grad_dtypes,
                   "Weight gradients for --backward: f32 (accumulated, as in training), bf16 (overwritten), or f32,bf16")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  layer->add_flag("--skew", o.skew, "Skewed routing: one expert gets 30% of the tokens, eight get none");
  layer->add_flag("!--no-check", o.check, "Skip the check against the reference implementation");
  layer->add_flag("--json", o.json, "Print the results as JSON");
  layer->footer("Example:\n  dsmoe bench layer --tokens 1,16,512 --dtype q4_0");
  layer->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
