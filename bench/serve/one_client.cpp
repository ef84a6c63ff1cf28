// One request at a time in the engine, in turns with as many tokens fed to a bare session, as dsmoe bench model does it. On
// a machine with other work, the time that this process had the processors says more than the time that passed.
#include <fmt/format.h>

#include <ctime>

#include "core/random.h"
#include "infer/engine.h"
#include "infer/session.h"
#include "loaded.h"
#include "report.h"

namespace dsmoe::bench {

namespace {

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Milliseconds per token.
struct Times {
  std::vector<double> passed, worked;

  template <class Work>
  void add(int tokens, Work work) {
    const double start = now(), worked_before = processor_seconds();
    work();
    worked.push_back(1e3 * (processor_seconds() - worked_before) / tokens);
    passed.push_back(1e3 * (now() - start) / tokens);
  }
};

}  // namespace

void one_client(const Options& o) {
  Context ctx(o.threads, o.device == "cuda" ? Backend::kCuda : Backend::kCpu);
  const Loaded loaded = load(o, ctx);
  const Transformer& model = *loaded.model;
  const Index context = o.max_tokens + 1;
  Times session, engine;
  for (int i = 0; i < o.requests; ++i) {
    std::vector<std::int32_t> tokens;  // others every time: what experts they choose is in nobody's cache
    for (int n = 0; n < o.max_tokens; ++n)
      tokens.push_back(static_cast<std::int32_t>(
          Philox(o.seed, static_cast<std::uint64_t>(i))
              .below(static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(model.config().vocab_size))));
    infer::Session bare(ctx, model, {.context = context});
    session.add(o.max_tokens, [&] {
      for (const std::int32_t token : tokens) bare.feed(std::span(&token, 1));
      ctx.synchronize();
    });
    infer::Engine one(ctx, model, {.context = context, .parallel = 1});
    infer::Request request{.prompt = {tokens[0]}};
    request.options = {.max_tokens = o.max_tokens, .sampler = {.temperature = o.temperature}};
    engine.add(o.max_tokens, [&] {
      one.submit(request);
      while (one.step()) {
      }
    });
  }
  const double s = at(session.worked, 0.5), e = at(engine.worked, 0.5), sp = at(session.passed, 0.5),
               ep = at(engine.passed, 0.5);
  if (o.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"session_processor_ms", s},
                                              {"engine_processor_ms", e},
                                              {"processor_ratio", s / e},
                                              {"session_ms", sp},
                                              {"engine_ms", ep},
                                              {"ratio", sp / ep}}
                           .dump());
  else
    fmt::print(
        "a token of a session {:.3f} ms, of the engine {:.3f} ms: {:.3f}\nprocessor time {:.3f} ms and {:.3f} ms: {:.3f}\n",
        sp, ep, sp / ep, s, e, s / e);
}

}  // namespace dsmoe::bench
