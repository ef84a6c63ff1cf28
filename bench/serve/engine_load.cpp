// The engine in this process, without HTTP: clients are callbacks that submit the next request when one has ended.
#include <fmt/format.h>

#include <atomic>
#include <memory>

#include "core/device.h"
#include "core/fail.h"
#include "core/random.h"
#include "infer/engine.h"
#include "loaded.h"
#include "report.h"

namespace dsmoe::bench {

namespace {

using infer::Engine;
using infer::Request;

class Clients {
 public:
  Clients(Engine& engine, const Options& o, Index vocabulary, int requests, int output)
      : engine_(engine), o_(o), vocabulary_(vocabulary), output_(output), all_(static_cast<std::size_t>(requests)) {}

  // Runs the engine until all have had their answers, and returns how long that took.
  double run() {
    const double start = now();
    for (int c = 0; c < o_.clients; ++c) next();
    while (engine_.step()) {
    }
    return now() - start;
  }
  const std::vector<Seen>& seen() const { return all_; }

 private:
  void next() {
    const std::size_t number = begun_++;
    if (number >= all_.size()) return;
    Request r;
    const Philox random(o_.seed + number, static_cast<std::uint64_t>(all_.size()));
    for (int i = 0; i < o_.prompt; ++i)
      r.prompt.push_back(
          static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocabulary_))));
    r.options.max_tokens = output_;
    r.options.sampler.temperature = o_.temperature;
    r.options.sampler.seed = number;
    Seen& seen = all_[number];
    const double start = now();
    const auto last = std::make_shared<double>(start);
    r.on_token = [&seen, start, last](const infer::Token& token) {
      if (token.id < 0) return;
      const double time = now();
      if (seen.tokens++ == 0)
        seen.first = time - start;
      else
        seen.between.push_back(time - *last);
      *last = time;
    };
    r.on_end = [this, &seen, start](const infer::Ended& ended) {
      seen.total = now() - start;
      seen.failed = ended.reason != infer::End::kLength;
      if (ended.error) fmt::print(stderr, "{}\n", ended.error->what());
      next();
    };
    if (!engine_.submit(std::move(r))) seen.failed = true;
  }

  Engine& engine_;
  const Options& o_;
  Index vocabulary_;
  int output_;
  std::vector<Seen> all_;
  std::size_t begun_ = 0;
};

}  // namespace

void engine_load(const Options& o) {
  Context ctx(o.threads, o.device == "cuda" ? Backend::kCuda : Backend::kCpu);
  const Loaded loaded = load(o, ctx);
  ctx.synchronize();
  EngineOptions options{.context = o.prompt + o.max_tokens, .parallel = o.clients, .queue = o.clients};
  options.step_tokens = o.step_tokens;
  Engine engine(ctx, *loaded.model, options, {}, o.wait ? Engine::Ahead::kNever : Engine::Ahead::kAuto);
  const Index vocabulary = loaded.model->config().vocab_size;
  constexpr int kWarmTokens = 4;  // a short answer for every client, not timed: memory is there afterwards
  Clients(engine, o, vocabulary, o.clients, std::min(kWarmTokens, o.max_tokens)).run();
  const infer::EngineStats before = engine.stats();
  Clients clients(engine, o, vocabulary, o.requests, o.max_tokens);
  const double seconds = clients.run();
  const infer::EngineStats after = engine.stats();
  nlohmann::ordered_json more = {{"prompt_tokens_each", o.prompt},
                                 {"output_tokens_each", o.max_tokens},
                                 {"step_tokens", o.step_tokens},
                                 {"steps", after.steps - before.steps},
                                 {"tokens_run", after.step_tokens - before.step_tokens},
                                 {"preemptions", after.preemptions - before.preemptions}};
  if (ctx.backend() == Backend::kCuda) more["peak_bytes"] = device::usage().peak;
  print_report(o, clients.seen(), seconds, more);
}

}  // namespace dsmoe::bench
