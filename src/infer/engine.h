// Many requests at once: in every step, one token of each request that generates, and parts of prompts beside them. The
// tokens of a request are the same whatever runs beside it, with a seed and under any load: the model's results do not
// depend on the batch, and a row is sampled from its own state. docs/design/serving.md says how and why.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "dsmoe/engine_options.h"
#include "dsmoe/tokenizer.h"
#include "infer/engine_stats.h"
#include "infer/flight.h"
#include "infer/request.h"
#include "infer/scheduler.h"
#include "model/transformer.h"

namespace dsmoe::infer {

class Engine {
 public:
  // Whether a step is launched before the tokens of the one before have been looked at. It changes no token.
  enum class Ahead {
    kAuto,  // on a GPU, which works meanwhile
    kNever,
    kAlways,  // for tests
  };
  // Without a tokenizer there are no texts and no stop strings. All arguments must stay.
  Engine(Context& ctx, const Transformer& model, const EngineOptions& options, std::optional<Tokenizer> tokenizer = {},
         Ahead ahead = Ahead::kAuto);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // From any thread:
  // Throws for a request that can never run. Nothing: there are too many already, or close() was called.
  std::optional<RequestId> submit(Request request);
  void cancel(RequestId id);  // its on_end() follows, unless it has ended meanwhile
  void close();               // run() returns when what is there has ended
  void stop();                // run() returns after this step; what is there ends as cancelled
  EngineStats stats() const;
  Index context() const { return context_; }  // tokens of a request, prompt and answer
  Index cache_tokens() const { return cache_tokens_; }

  // Before run(): called by the engine's thread when all callbacks of a step have been called.
  void on_step(std::function<void()> call) { on_step_ = std::move(call); }
  // From one thread, the engine's:
  void run();
  bool step();  // false: there is nothing to do
  // Why run() returned by itself: the model is spread over ranks, and the others wait for this one, which cannot go on.
  const std::optional<Error>& lost_ranks() const { return lost_ranks_; }

 private:
  using Result = Flight::Result;

  Scheduler make_scheduler();
  void check(const Request& request) const;
  void take_messages();
  void end_overdue();
  bool goes_ahead(const std::vector<std::vector<Share>>& passes) const;
  void run_pass(std::span<const Share> shares);  // to its end
  void launch_ahead(std::span<const Share> shares);
  void land();     // looks at the oldest pass that is on its way
  void abandon();  // all that are: their tokens will run again
  Flight launch(std::span<const Share> shares);
  ForwardBatch batch_of(std::span<const Share> shares);
  void finish(Flight flight, std::vector<Chosen> chosen);
  PassHooks hooks_for(const ForwardBatch& batch, std::span<const Share> shares, std::vector<Result>& results);
  void add_hidden(std::span<const Share> shares, const Tensor& hidden, std::vector<Result>& results) const;
  void deliver(const Share& share, Index length, Result result, std::optional<Chosen> chosen);
  void prompt_done(Job& job);
  void take_token(Job& job, Index length, Chosen chosen);
  void end(Job& job, End reason, std::optional<Error> error = {});
  void give_rest(Job& job);  // what of its text and routing nobody has had
  void end_all(End reason, const std::optional<Error>& error = {});
  void publish(Index tokens);

  Context& ctx_;
  const Transformer& model_;
  EngineOptions options_;
  std::optional<Tokenizer> tokenizer_;
  Index context_, cache_tokens_ = 0;
  Scheduler scheduler_;
  const bool ahead_;
  bool careful_ = false;         // the step before failed: this one goes to its end
  std::array<Later, 2> laters_;  // as many as there are flights
  std::size_t launched_ = 0;
  std::deque<Flight> flights_;  // one between steps, two within one
  std::optional<Error> lost_ranks_;
  EngineStats now_;  // the engine's thread's own
  std::function<void()> on_step_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  Scheduler::Jobs arrived_;
  std::vector<RequestId> cancelled_;
  RequestId last_id_ = 0;
  Index inside_ = 0;  // requests that have not ended
  std::uint64_t refused_ = 0;
  bool closed_ = false, stopped_ = false;
  EngineStats stats_;
};

}  // namespace dsmoe::infer
