// dsmoe bench: speeds, each with the bound that this machine was measured to have in the same run.
#include "cli/bench.h"

#include "cli/commands.h"

namespace dsmoe::cli {

void add_bench(CLI::App& program) {
  CLI::App* bench =
      add_command(program, "bench",
                  "Benchmark a layer, attention, a model, training or tracing against this machine's measured limits");
  bench->require_subcommand(1);
  bench->footer("Example:\n  dsmoe bench layer --tokens 1,16,512 --dtype bf16");
  add_bench_attention(*bench);
  add_bench_layer(*bench);
  add_bench_model(*bench);
  add_bench_trace(*bench);
  add_bench_train(*bench);
}

}  // namespace dsmoe::cli
