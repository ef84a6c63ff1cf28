// dsmoe bench trace: what looking at the routing costs: the time that a prompt spends in the statistics and in the trace.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <memory>

#include "api/model_impl.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/ranges.h"
#include "cli/table.h"
#include "core/fail.h"
#include "core/random.h"
#include "dsmoe/routing_overrides.h"
#include "infer/session.h"
#include "study/routing_study.h"
#include "study/trace.h"

namespace dsmoe::cli {

namespace {

struct BenchTraceFlags {
  ModelFlags model;
  Index prompt = 512;
  int repeat = 15;
  bool json = false;
};

// What a layer does for nobody: it asks whether there is a probe, and whether routing is changed.
double nobody_listening_seconds() {
  constexpr int kTimes = 1 << 22;
  const RoutingProbe probe;
  const RoutingOverrides* overrides = nullptr;
  std::int64_t heard = 0;
  const double start = now_seconds();
  for (int i = 0; i < kTimes; ++i) {
    asm volatile("" : : "r"(&probe), "r"(&overrides) : "memory");  // both are read again every time
    if (overrides != nullptr) ++heard;
    if (probe) ++heard;
  }
  const double taken = now_seconds() - start;
  invariant(heard == 0, "nobody was heard");
  return taken / kTimes;
}

struct Mode {
  const char* name;
  study::Recorder* recorder;         // null: nobody listens
  std::vector<double> share, whole;  // of the time of the rest, of a run without: in the sink, of whole runs
};

void run(const BenchTraceFlags& o) {
  const std::shared_ptr<const Model> loaded = o.model.open();
  const Transformer& model = *loaded->impl().transformer;
  Context ctx(o.model.session.threads, backend_for(loaded->device()));
  const study::RoutingShape shape = study::RoutingShape::of(model.config());
  std::vector<std::int32_t> ids;
  const Philox rng(1, 2);
  for (Index i = 0; i < o.prompt; ++i)
    ids.push_back(
        static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(shape.vocab_size))));

  const std::filesystem::path file =
      std::filesystem::temp_directory_path() /
      fmt::format("dsmoe_bench_{}.trace", rng.block(static_cast<std::uint64_t>(now_seconds() * 1e6))[0]);
  study::RoutingStudy statistics(shape);
  study::TraceWriter writer(file, shape);
  const std::vector<std::string> domains = {"bench"};
  double taken = 0;
  const auto timed = [&](auto work) {
    return [&taken, work](const study::RoutingBatch& b) {
      const double start = now_seconds();
      work(b);
      taken += now_seconds() - start;
    };
  };
  study::Recorder to_statistics(shape, timed([&](const study::RoutingBatch& b) { statistics.add(ctx, b); }));
  study::Recorder to_trace(shape, timed([&](const study::RoutingBatch& b) { writer.add(b, domains); }));
  std::array<Mode, 3> modes = {
      {{"nobody", nullptr, {}, {}}, {"statistics", &to_statistics, {}, {}}, {"trace", &to_trace, {}, {}}}};
  std::vector<double> plain;
  for (int i = -1; i < o.repeat; ++i)
    for (Mode& mode : modes) {
      infer::Session session(ctx, model, {.context = o.prompt});
      if (mode.recorder) mode.recorder->start(ids, 0), session.set_probe(mode.recorder->probe());
      taken = 0;
      const double start = now_seconds();
      session.feed(ids);
      const double all = now_seconds() - start;
      if (i < 0) continue;
      if (!mode.recorder) plain.push_back(all);
      mode.share.push_back(taken / (all - taken));
      mode.whole.push_back(all / plain.back() - 1);
    }
  const double bytes =
      static_cast<double>(writer.bytes()) / static_cast<double>(std::max<std::int64_t>(writer.tokens(), 1));
  const double rate = static_cast<double>(o.prompt) / median(plain), one = nobody_listening_seconds();
  const double off = one * static_cast<double>(shape.layers.size()) / median(plain);
  if (o.json) {
    print_json({{"prompt", o.prompt},
                {"tokens_per_second", rate},
                {"off_cost", off},
                {"off_nanoseconds_per_layer", one * 1e9},
                {"statistics_cost", median(modes[1].share)},
                {"statistics_whole", median(modes[1].whole)},
                {"trace_cost", median(modes[2].share)},
                {"trace_whole", median(modes[2].whole)}});
    return;
  }
  Table table({"prompt of " + std::to_string(o.prompt), "cost", "of whole runs"});
  table.row({"without", fmt::format("{:.0f} tokens/s", rate), ""});
  table.row({"nobody listening", fmt::format("{:+.6f}%", 100 * off), ""});
  for (std::size_t m = 1; m < modes.size(); ++m)
    table.row({modes[m].name, fmt::format("{:+.2f}%", 100 * median(modes[m].share)),
               fmt::format("{:+.2f}%", 100 * median(modes[m].whole))});
  print(table.str());
  print(
      fmt::format("\nMedians of {} runs of each, in turn{}. Cost is the time in the statistics or the trace over the rest "
                  "of the same run;\n"
                  "whole runs are compared with the one before without them, and vary more than the cost. Nobody "
                  "listening: {:.2f} ns a layer.\n",
                  o.repeat, bytes > 0 ? fmt::format("; {:.0f} bytes of trace per token", bytes) : "", one * 1e9));
}

}  // namespace

void add_bench_trace(CLI::App& bench) {
  auto options = std::make_shared<BenchTraceFlags>();
  BenchTraceFlags& o = *options;
  CLI::App* command =
      add_command(bench, "trace", "Benchmark the cost of routing statistics and traces during prompt processing");
  o.model.add(*command);
  o.model.add_threads(*command);
  command->add_option("-p,--n-prompt", o.prompt, "Prompt length in tokens")
      ->check(in_range(kPositive))
      ->capture_default_str();
  command->add_option("-r,--repetitions", o.repeat, "Timed runs of each mode")
      ->check(in_range(kPositive))
      ->capture_default_str();
  command->add_flag("--json", o.json, "Print the results as JSON");
  command->footer("Example:\n  dsmoe bench trace -m MODEL -p 512");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
