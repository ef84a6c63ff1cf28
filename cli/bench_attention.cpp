// dsmoe bench attention: causal attention over whole sequences and its backward, on a GPU.
#include "cli/bench_attention.h"

#include <fmt/format.h>

#include <memory>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/ranges.h"
#include "cli/table.h"

namespace dsmoe::cli {

namespace {

void run_attention(AttentionOptions o) {
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.heads % o.kv_heads != 0) throw UsageError("--kv-heads must divide --heads");
  for (const Index length : o.lengths)
    if (length < 1 || length > o.tokens) throw UsageError("--length must be at least 1 and at most --tokens");
  const AttentionReport report = bench_attention_cuda(o);
  if (o.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const AttentionResult& r : report.results)
      rows.push_back({{"pass", r.backward ? "backward" : "forward"},
                      {"sequences", r.sequences},
                      {"length", r.length},
                      {"seconds", r.seconds},
                      {"gflops", r.flops / r.seconds * 1e-9},
                      {"sustained_seconds", r.sustained_seconds},
                      {"sustained_gflops", r.flops / r.sustained_seconds * 1e-9}});
    print_json({{"heads", o.heads},
                {"kv_heads", o.kv_heads},
                {"head_dim", o.head_dim},
                {"dtype", o.dtype_name},
                {"device_name", report.device},
                {"error_against_reference", report.error},
                {"sustained_peak_gflops", report.sustained_peak * 1e-9},
                {"results", rows}});
    return;
  }
  print(
      fmt::format("Causal attention: {} heads ({} of keys and values) of {}; {}, {} (off from the reference by {:.1e})\n\n",
                  o.heads, o.kv_heads, o.head_dim, o.dtype_name, report.device, report.error));
  Table table({"pass", "sequences", "length", "us", "TFLOP/s", "sustained us", "TFLOP/s", "of peak"});
  for (const AttentionResult& r : report.results)
    table.row({r.backward ? "backward" : "forward", std::to_string(r.sequences), std::to_string(r.length),
               fmt::format("{:.1f}", r.seconds * 1e6), fmt::format("{:.0f}", r.flops / r.seconds * 1e-12),
               fmt::format("{:.1f}", r.sustained_seconds * 1e6),
               fmt::format("{:.0f}", r.flops / r.sustained_seconds * 1e-12),
               fmt::format("{:.0f}%", 100 * r.flops / r.sustained_seconds / report.sustained_peak)});
  print(table.str());
  print(fmt::format(
      "\nMeasured in this run: {:.0f} TFLOP/s sustained in a large matrix product. Counted are 2 products forward and\n"
      "5 backward, over the keys that a query sees.\n",
      report.sustained_peak * 1e-12));
}

}  // namespace

void add_bench_attention(CLI::App& bench) {
  auto options = std::make_shared<AttentionOptions>();
  AttentionOptions& o = *options;
  CLI::App* attention =
      add_command(bench, "attention", "Benchmark causal attention and its backward on a GPU (default: deepseek-moe-16b's)");
  attention->add_option("--tokens", o.tokens, "Tokens of all sequences together")
      ->check(in_range(kPositive))
      ->capture_default_str();
  attention->add_option("--length", o.lengths, "Tokens of one sequence; comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  attention->add_option("--heads", o.heads, "Heads of queries")->check(in_range(kPositive))->capture_default_str();
  attention->add_option("--kv-heads", o.kv_heads, "Heads of keys and values (0: as many)")
      ->check(in_range(kNotNegative))
      ->capture_default_str();
  attention->add_option("--head-dim", o.head_dim, "Numbers of a head")->check(in_range(kPositive))->capture_default_str();
  attention->add_option("--dtype", o.dtype_name, "Dtype: f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  attention->add_option("--path", o.path, "CUDA kernels: auto, hopper, mma or plain")
      ->check(CLI::IsMember({"auto", "hopper", "mma", "plain"}))
      ->capture_default_str();
  attention->add_option("--repeat", o.repeat, "Timed runs; the median is reported")
      ->check(in_range(kPositive))
      ->capture_default_str();
  attention->add_flag("--json", o.json, "Print the results as JSON");
  attention->footer("Example:\n  dsmoe bench attention --length 4096,1024");
  attention->callback([options] { run_attention(*options); });
}

}  // namespace dsmoe::cli
