#include "dsmoe/engine.h"

#include <chrono>
#include <condition_variable>
#include <future>
#include <thread>

#include "api/text_grammars.h"
#include "core/caught_error.h"
#include "core/fail.h"
#include "infer/engine.h"

namespace dsmoe {

namespace {

std::shared_ptr<const Model> given(std::shared_ptr<const Model> model) {
  require(model != nullptr, "an engine needs a model");
  return model;
}

// What a program's callbacks have made of a request. Of the engine's thread alone, but for the id.
struct Call {
  Request request;  // without its prompt
  RequestId id = 0;
  bool cancelled = false;
  std::optional<Error> error;
};

}  // namespace

struct Engine::Impl {
  Impl(std::shared_ptr<const Model> m, const EngineOptions& options)
      : model(std::move(m)),
        ctx(options.threads, backend_for(model->device())),
        engine(ctx, *model->impl().transformer, options, model->tokenizer()),
        runs([this] { engine.run(); }) {}
  ~Impl() {
    engine.stop();
    runs.join();
  }

  infer::Request prepared(Request& from);
  void listen(infer::Request& to, const std::shared_ptr<Call>& call);
  // Calls what the program gave, and ends the request when it wants no more.
  template <class Callback>
  void ask(Call& call, Callback callback);
  void end(Call& call, RequestEnded ended);
  void require_other_thread() const {
    require(std::this_thread::get_id() != runs.get_id(), "a callback of the engine cannot wait for it");
  }

  std::shared_ptr<const Model> model;
  TextGrammars grammars;
  Context ctx;
  infer::Engine engine;
  std::mutex mutex;  // of `open` and of the ids of calls
  std::condition_variable ended;
  Index open = 0;    // requests whose on_end has not returned
  std::thread runs;  // last: it uses all of the above
};

infer::Request Engine::Impl::prepared(Request& from) {
  require(from.prompt.empty() || from.text.empty(), "a request has a prompt or a text, not both");
  infer::Request r{.prompt = std::move(from.prompt), .options = with_end_tokens(*model, from.options)};
  if (r.prompt.empty() && !from.text.empty()) r.prompt = tokenizer_of(*model).encode(from.text, {.add_eos = false});
  if (const auto grammar = grammars.compiled(*model, r.options)) r.mask = std::make_shared<infer::GrammarMask>(grammar);
  r.logprobs = from.logprobs, r.prompt_logprobs = from.prompt_logprobs;
  r.logit_bias = std::move(from.logit_bias);
  r.routing = from.routing, r.overrides = from.overrides;
  r.embedding = from.embedding, r.seconds = from.seconds;
  return r;
}

template <class Callback>
void Engine::Impl::ask(Call& call, Callback callback) {
  if (call.cancelled) return;
  try {
    call.cancelled = !callback();
  } catch (...) {
    call.cancelled = true;
    call.error = caught_error(ErrorCode::kInvalidArgument);
  }
  if (!call.cancelled) return;
  const std::lock_guard lock(mutex);  // submit() may not have written the id yet
  engine.cancel(call.id);
}

void Engine::Impl::end(Call& call, RequestEnded how) {
  if (call.cancelled) how.reason = call.error ? RequestEnd::kError : RequestEnd::kCancelled;
  if (call.error) how.error = std::move(call.error);
  try {
    if (call.request.on_end) call.request.on_end(how);
  } catch (...) {  // there is nobody left to tell
  }
  const std::lock_guard lock(mutex);
  if (--open == 0) ended.notify_all();
}

void Engine::Impl::listen(infer::Request& to, const std::shared_ptr<Call>& call) {
  if (call->request.on_prompt)
    to.on_prompt = [this, call](const PromptDone& prompt) {
      ask(*call, [&] { return call->request.on_prompt(prompt), true; });
    };
  if (call->request.on_token)
    to.on_token = [this, call](const GeneratedToken& token) { ask(*call, [&] { return call->request.on_token(token); }); };
  to.on_end = [this, call](RequestEnded how) { end(*call, std::move(how)); };
}

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(given(std::move(model)), options)) {}
Engine::~Engine() = default;

const Model& Engine::model() const { return *impl_->model; }
Index Engine::context() const { return impl_->engine.context(); }
Index Engine::cache_tokens() const { return impl_->engine.cache_tokens(); }

std::optional<RequestId> Engine::submit(Request request) {
  infer::Request r = impl_->prepared(request);
  const auto call = std::make_shared<Call>(Call{.request = std::move(request)});
  impl_->listen(r, call);
  const std::lock_guard lock(impl_->mutex);
  const std::optional<RequestId> id = impl_->engine.submit(std::move(r));
  if (!id) return {};
  call->id = *id;
  ++impl_->open;
  return id;
}

void Engine::cancel(RequestId id) { impl_->engine.cancel(id); }

void Engine::wait() {
  impl_->require_other_thread();
  std::unique_lock lock(impl_->mutex);
  impl_->ended.wait(lock, [&] { return impl_->open == 0; });
}

Generated Engine::generate(Request request) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  impl_->require_other_thread();
  require(!request.embedding, "an embedding is no text; use submit");
  Generated out;
  bool stopped = false;
  const auto promise = std::make_shared<std::promise<RequestEnded>>();  // the engine's thread may leave it last
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start;
  request.on_prompt = [&, theirs = std::move(request.on_prompt)](const PromptDone& prompt) {
    first = Clock::now();
    out.prompt_tokens = prompt.tokens - prompt.cached;
    if (theirs) theirs(prompt);
  };
  request.on_token = [&, theirs = std::move(request.on_token)](const GeneratedToken& token) {
    if (token.id >= 0) out.ids.push_back(token.id);
    out.text += token.text;
    stopped = theirs && !theirs(token);
    return !stopped;
  };
  request.on_end = [promise, theirs = std::move(request.on_end)](const RequestEnded& how) {
    try {
      if (theirs) theirs(how);
    } catch (...) {  // as in submit(); who waits must be told
    }
    promise->set_value(how);
  };
  if (!submit(std::move(request)))
    fail(ErrorCode::kUnsupported, "too many requests wait already; try again later, or use a larger queue");
  const RequestEnded how = promise->get_future().get();
  if (how.error) throw *how.error;
  if (how.reason == RequestEnd::kCancelled && !stopped)
    fail(ErrorCode::kUnsupported, "the request was cancelled before its text was complete");
  out.seconds = seconds(first, Clock::now());
  out.prompt_seconds = seconds(start, first);
  out.finish = how.reason == RequestEnd::kEos                                            ? Finish::kEos
               : how.reason == RequestEnd::kContext                                      ? Finish::kContext
               : how.reason == RequestEnd::kTimeout                                      ? Finish::kTimeout
               : how.reason == RequestEnd::kStop || how.reason == RequestEnd::kCancelled ? Finish::kStopped
                                                                                         : Finish::kLength;
  return out;
}

}  // namespace dsmoe
