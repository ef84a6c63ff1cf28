// dsmoe bench trace: what looking at the routing costs: the time that a prompt spends in the statistics and in the trace.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/table.h"
#include "core/random.h"
#include "study/routing_study.h"
#include "study/trace.h"

namespace dsmoe::cli {

namespace {

struct Options {
  ModelOptions model;
  Index prompt = 512;
  int repeat = 15;
  bool json = false;
};

void run(const Options& o) {
  const Transformer model = o.model.load();
  Context ctx(o.model.threads);
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
  // Differences of whole runs are as large as their noise, so what the sinks take is timed in them.
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
  std::vector<double> plain, with_statistics, with_trace;
  for (int i = -1; i < o.repeat; ++i)
    for (study::Recorder* recorder : {&to_statistics, &to_trace}) {
      Session session(ctx, model, {.context = o.prompt});
      recorder->start(ids, 0);
      session.set_probe(recorder->probe());
      taken = 0;
      const double start = now_seconds();
      session.feed(ids);
      const double rest = now_seconds() - start - taken;
      if (i < 0) continue;
      plain.push_back(rest);
      (recorder == &to_statistics ? with_statistics : with_trace).push_back(taken / rest);
    }
  const double bytes =
      static_cast<double>(writer.bytes()) / static_cast<double>(std::max<std::int64_t>(writer.tokens(), 1));
  const double rate = static_cast<double>(o.prompt) / median(plain);
  if (o.json) {
    print_json({{"prompt", o.prompt},
                {"tokens_per_second", rate},
                {"statistics_cost", median(with_statistics)},
                {"trace_cost", median(with_trace)}});
    return;
  }
  Table table({"prompt of " + std::to_string(o.prompt), "cost"});
  table.row({"without", fmt::format("{:.0f} tokens/s", rate)});
  table.row({"statistics", fmt::format("{:+.2f}%", 100 * median(with_statistics))});
  table.row({"trace", fmt::format("{:+.2f}%", 100 * median(with_trace))});
  print(table.str());
  print(fmt::format("\nMedians of {} runs of each{}.\n", o.repeat,
                    bytes > 0 ? fmt::format("; {:.0f} bytes of trace per token", bytes) : ""));
}

}  // namespace

void add_bench_trace(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command =
      add_command(bench, "trace", "What statistics and traces of the routing cost while a prompt is processed");
  o.model.add(*command);
  command->add_option("-p,--n-prompt", o.prompt, "Prompt tokens")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("-r,--repetitions", o.repeat, "Timed runs of each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--json", o.json, "Print the results as JSON");
  command->footer("Example:\n  dsmoe bench trace -m MODEL -p 512");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
