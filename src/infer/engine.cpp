#include "infer/engine.h"

#include <algorithm>
#include <cmath>

#include "core/available_memory.h"
#include "core/caught_error.h"
#include "core/device.h"
#include "core/fail.h"
#include "core/options.h"
#include "infer/passes.h"
#include "infer/token_choice.h"
#include "model/modules.h"

namespace dsmoe {

void EngineOptions::validate() const { validate_options(*this); }

const char* to_string(RequestEnd end) {
  switch (end) {
    case RequestEnd::kLength: return "length";
    case RequestEnd::kEos: return "eos";
    case RequestEnd::kStop: return "stop";
    case RequestEnd::kContext: return "context";
    case RequestEnd::kCancelled: return "cancelled";
    case RequestEnd::kTimeout: return "timeout";
    case RequestEnd::kError: return "error";
  }
  return "unknown";
}

namespace infer {

namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::uint64_t free_memory(Device device) {
  return device == Device::kCuda ? static_cast<std::uint64_t>(device::memory().free) : available_memory();
}

// Half of the free memory, in whole pages.
Index tokens_that_fit(const Transformer& model, DType dtype) {
  std::uint64_t bytes = 0;
  for (const LayerSpec& layer : model.spec().layers) {
    const KvLayout kv = kv_layout(layer);
    bytes += static_cast<std::uint64_t>(row_bytes(dtype, kv.k_width) + row_bytes(dtype, kv.v_width));
  }
  const std::uint64_t tokens = free_memory(model.device()) / 2 / std::max<std::uint64_t>(bytes, 1);
  return static_cast<Index>(std::min<std::uint64_t>(tokens, 1 << 30)) / KvPool::kPageTokens * KvPool::kPageTokens;
}

}  // namespace

Engine::Engine(Context& ctx, const Transformer& model, const EngineOptions& options, std::optional<Tokenizer> tokenizer,
               Ahead ahead)
    : ctx_(ctx),
      model_(model),
      options_(options),
      tokenizer_(std::move(tokenizer)),
      context_(options.context > 0 ? options.context : model.config().max_position_embeddings),
      scheduler_(make_scheduler()),
      ahead_(ahead == Ahead::kAlways || (ahead == Ahead::kAuto && ctx.backend() == Backend::kCuda && !model.is_spread())) {
  publish(0);
}

Engine::~Engine() = default;

Scheduler Engine::make_scheduler() {
  options_.validate();
  // A GPU runs 2048 rows in about twice the time of 256; a CPU's time grows with every row, and others wait for it.
  if (options_.step_tokens == 0) options_.step_tokens = model_.device() == Device::kCuda ? 2048 : 512;
  const EngineOptions& options = options_;
  const DType dtype = model_.kv_dtype(options.kv_type);
  const Index page = KvPool::kPageTokens, whole = KvPool::pages_for(context_) * page;
  cache_tokens_ = options.cache_tokens;
  // One context more than the requests need at most: what they leave for others.
  if (cache_tokens_ == 0)
    cache_tokens_ = std::min(tokens_that_fit(model_, dtype), std::min<Index>(options.parallel + 1, Index{1} << 20) * whole);
  cache_tokens_ = std::max(KvPool::pages_for(cache_tokens_) * page, page);
  if (options.cache_tokens == 0) cache_tokens_ = std::max(cache_tokens_, whole);
  context_ = std::min(context_, cache_tokens_);
  return Scheduler(model_.make_kv_pool(cache_tokens_, dtype), {.context = context_,
                                                               .parallel = options.parallel,
                                                               .step_tokens = options.step_tokens,
                                                               .prefix_cache = !options.no_prefix_cache});
}

void Engine::check(const Request& r) const {
  r.options.validate();
  const Index vocabulary = model_.config().vocab_size;
  require(!r.prompt.empty(), "the prompt is empty");
  for (const std::int32_t id : r.prompt)
    require(id >= 0 && id < vocabulary, "the prompt has token {}, the vocabulary has {}", id, vocabulary);
  require(static_cast<Index>(r.prompt.size()) <= context_,
          "the prompt has {} tokens, the context {}; send a shorter one, or use a larger context", r.prompt.size(),
          context_);
  for (const auto& [id, bias] : r.logit_bias)
    require(id >= 0 && id < vocabulary && std::abs(bias) <= 1e4f,
            "a logit bias of {} for token {}; the vocabulary has {} tokens, and a bias is at most 10000", bias, id,
            vocabulary);
  require(tokenizer_ || r.options.stop.empty(), "stop needs a model with a tokenizer");
  if (r.overrides) check_overrides(model_.spec(), *r.overrides);
}

std::optional<RequestId> Engine::submit(Request request) {
  check(request);
  auto job = std::make_unique<Job>(0, std::move(request), KvSequence(scheduler_.shared_pool(), context_));
  if (tokenizer_) job->stream.emplace(*tokenizer_, job->request.options.stop, job->request.shown_tokens);
  const double limit = job->request.seconds > 0 ? job->request.seconds : options_.request_seconds;
  if (limit > 0 && limit < 1e9)
    job->deadline = job->submitted + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit));
  const std::lock_guard lock(mutex_);
  if (closed_ || stopped_ || inside_ >= options_.parallel + options_.queue) {
    ++refused_;
    return {};
  }
  job->id = last_id_ + 1;
  arrived_.push_back(std::move(job));  // may throw: what counts it comes after
  ++inside_, ++last_id_;
  wake_.notify_one();
  return last_id_;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(id);
  wake_.notify_one();
}

void Engine::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  wake_.notify_one();
}

void Engine::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  wake_.notify_one();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats out = stats_;
  out.submitted = last_id_, out.refused = refused_;
  out.waiting += static_cast<Index>(arrived_.size());
  return out;
}

void Engine::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return inside_ > 0 || !cancelled_.empty() || closed_ || stopped_; });
      if (stopped_ || (closed_ && inside_ == 0)) break;
    }
    try {
      step();
    } catch (...) {  // no request's own: a callback's, or that of memory between passes
      end_all(End::kError, caught_error());
    }
    if ((lost_ranks_ = model_.lost_ranks())) {
      stop();
      break;
    }
  }
  try {
    take_messages();
  } catch (...) {  // of the callback of one that was cancelled
  }
  end_all(lost_ranks_ ? End::kError : End::kCancelled, lost_ranks_);
}

void Engine::end_all(End reason, const std::optional<Error>& error) {
  flights_.clear();
  for (Job* job : scheduler_.select([](const Job&) { return true; })) try {
      end(*job, reason, error);
    } catch (...) {  // of its callback; the others are still to end
    }
  publish(0);
}

void Engine::take_messages() {
  Scheduler::Jobs arrived;
  std::vector<RequestId> cancelled;
  {
    const std::lock_guard lock(mutex_);
    arrived.swap(arrived_);
    cancelled.swap(cancelled_);
  }
  scheduler_.add(std::move(arrived));
  if (cancelled.empty()) return;
  for (Job* job : scheduler_.select(
           [&](const Job& j) { return std::find(cancelled.begin(), cancelled.end(), j.id) != cancelled.end(); }))
    end(*job, End::kCancelled);
}

void Engine::end_overdue() {
  const Clock::time_point time = Clock::now();
  for (Job* job : scheduler_.select([&](const Job& j) { return j.deadline && *j.deadline <= time; }))
    end(*job, End::kTimeout);
}

bool Engine::step() {
  take_messages();
  end_overdue();
  const bool busy = !flights_.empty();
  std::vector<std::vector<Share>> passes = passes_of(scheduler_.plan(ctx_));
  bool ahead = goes_ahead(passes);
  if (!ahead && busy) {  // what is on its way says how it goes on
    while (!flights_.empty()) land();
    passes = passes_of(scheduler_.plan(ctx_));
    ahead = goes_ahead(passes);
  }
  careful_ = false;
  Index tokens = 0;
  for (const std::vector<Share>& pass : passes) {
    for (const Share& share : pass) tokens += share.tokens;
    ahead ? launch_ahead(pass) : run_pass(pass);
  }
  if (flights_.size() > 1) land();
  publish(tokens);
  return busy || !passes.empty();
}

bool Engine::goes_ahead(const std::vector<std::vector<Share>>& passes) const {
  return ahead_ && !careful_ && passes.size() == 1 &&
         std::all_of(passes[0].begin(), passes[0].end(), [](const Share& s) { return s.job->may_run_ahead(); });
}

void Engine::end(Job& gone, End reason, std::optional<Error> error) {
  for (Flight& flight : flights_) flight.forget(gone);
  const std::unique_ptr<Job> job = scheduler_.remove(gone);
  {
    const std::lock_guard lock(mutex_);
    --inside_;
  }
  Ended ended{.reason = reason,
              .prompt_tokens = job->prompt_tokens(),
              .cached_tokens = job->cached,
              .generated_tokens = job->generated(),
              .error = std::move(error)};
  try {
    give_rest(*job);
    if (job->request.embedding && reason == End::kLength)
      for (const double sum : job->sum)
        ended.embedding.push_back(static_cast<float>(sum / static_cast<double>(job->prompt_tokens())));
  } catch (...) {  // nobody has the job any more, so nobody else could tell its end
    ended.reason = End::kError;
    if (!ended.error) ended.error = caught_error();
  }
  ended.seconds = seconds_between(job->submitted, Clock::now());
  ++now_.ended[static_cast<std::size_t>(ended.reason)];
  now_.request.add(ended.seconds);
  if (job->request.on_end) job->request.on_end(std::move(ended));
}

void Engine::give_rest(Job& job) {
  Token rest;
  if (job.stream) rest.text = job.stream->finish();
  rest.routing = std::move(job.trace);
  if (job.request.on_token && (!rest.text.empty() || rest.routing.tokens > 0)) job.request.on_token(std::move(rest));
}

void Engine::prompt_done(Job& job) {
  scheduler_.prompt_done(job);
  job.prompt_done = true;
  now_.prompt_tokens += static_cast<std::uint64_t>(job.prompt_tokens());
  now_.cached_tokens += static_cast<std::uint64_t>(job.cached);
  if (job.request.on_prompt) job.request.on_prompt({job.prompt_tokens(), job.cached, std::move(job.prompt_logprobs)});
}

// `length`: of the sequence when the token was chosen.
void Engine::take_token(Job& job, Index length, Chosen chosen) {
  const GenerateOptions& o = job.request.options;
  if (o.max_tokens == 0) return end(job, End::kLength);
  const auto is_end = [&] { return std::find(o.end_tokens.begin(), o.end_tokens.end(), chosen.id) != o.end_tokens.end(); };
  if (chosen.id < 0 || is_end()) return end(job, End::kEos);
  const Clock::time_point time = Clock::now();
  if (job.generated() == 0)
    now_.first_token.add(seconds_between(job.submitted, time));
  else
    now_.between_tokens.add(seconds_between(job.last_token, time));
  job.last_token = time;
  if (job.request.mask) job.request.mask->accept(chosen.id);
  job.ids.push_back(chosen.id);
  ++now_.generated_tokens;
  Token token{chosen.id, job.stream ? job.stream->push(chosen.id) : std::string(), std::move(chosen.logprobs),
              std::exchange(job.trace, {})};
  if (job.request.on_token) job.request.on_token(std::move(token));
  if (job.stream && job.stream->stopped()) return end(job, End::kStop);
  if (length == context_) return end(job, End::kContext);
  if (o.max_tokens >= 0 && job.generated() >= o.max_tokens) return end(job, End::kLength);
}

void Engine::publish(Index tokens) {
  now_.running = scheduler_.running(), now_.waiting = scheduler_.waiting();
  now_.pages = scheduler_.pool().pages(), now_.free_pages = scheduler_.pool().free_pages();
  now_.cached_pages = scheduler_.cache().pages(), now_.preemptions = scheduler_.preemptions();
  now_.steps += tokens > 0, now_.step_tokens += static_cast<std::uint64_t>(tokens);
  {
    const std::lock_guard lock(mutex_);
    stats_ = now_;
  }
  if (on_step_) on_step_();
}

}  // namespace infer

}  // namespace dsmoe
