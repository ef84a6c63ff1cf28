#include "serve/server.h"

#include <sys/resource.h>

#include <chrono>
#include <future>
#include <thread>

#include "core/options.h"
#include "serve/api.h"
#include "serve/api_error.h"
#include "serve/mailbox.h"
#include "serve/worker.h"

namespace dsmoe {

void ServeOptions::validate() const { validate_options(*this); }

namespace serve {

namespace {

constexpr std::chrono::seconds kLastWords{5};  // for those who do not read what they are told

// A stream is an open file: as many as the system lets this process have.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

HttpOptions http_options(const ServeOptions& o) {
  o.validate();
  HttpOptions out{.host = o.host,
                  .port = static_cast<std::uint16_t>(o.port),
                  .body_bytes = static_cast<std::size_t>(o.body_bytes),
                  .connections = static_cast<std::size_t>(o.connections),
                  .idle_seconds = o.idle_seconds,
                  .body_seconds = o.body_seconds,
                  .write_seconds = o.write_seconds,
                  .certificate = o.ssl_cert_file,
                  .key = o.ssl_key_file};
  if (!o.cors_origin.empty())
    out.headers = {{"Access-Control-Allow-Origin", o.cors_origin},
                   {"Access-Control-Allow-Methods", "GET, POST"},
                   {"Access-Control-Allow-Headers", "Authorization, Content-Type, *"},  // clients add their own
                   {"Access-Control-Max-Age", "600"},
                   {"Vary", "Origin"}};
  return out;
}

// Null where there is none, or it cannot be read: then each chat gets the error.
std::shared_ptr<const ChatFormat> format_of(const ServedModel& m) {
  if (!m.tokenizer || m.tokenizer->chat_template().empty()) return nullptr;
  try {
    return std::make_shared<ChatFormat>(*m.tokenizer);
  } catch (const Error&) {
    return nullptr;
  }
}

RequestDefaults defaults_of(const ServedModel& m) {
  return {.model = m.name,
          .tokenizer = m.tokenizer,
          .chat_format = format_of(m),
          .sampler = m.sampler,
          .end_tokens = m.end_tokens,
          .vocabulary = m.transformer->config().vocab_size};
}

std::int64_t seconds_since_1970() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct Server::Impl {
  Impl(ServedModel model, const ServeOptions& options, const EngineOptions& engine_options, std::string key)
      : ctx(engine_options.threads, backend_for(model.transformer->device())),
        engine(ctx, *model.transformer, engine_options, model.tokenizer),
        services{.engine = engine,
                 .post = [this](std::function<void()> call) { http.post(std::move(call)); },
                 .tell = [this](std::function<void()> call) { mailbox.add(std::move(call)); },
                 .work = [this](std::function<void()> job) { return worker.add(std::move(job)); },
                 .defaults = defaults_of(model),
                 .config = model.transformer->config(),
                 .started = seconds_since_1970()},
        api(services, {.key = std::move(key),
                       .page = !options.no_page,
                       .cors = options.cors_origin,
                       .hosts = HostCheck(options.host, options.allowed_hosts)}),
        http(
            http_options(options),
            [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
              api.handle(std::move(request), std::move(reply));
            },
            [](int status, std::string_view message) { return error_body(status, message); }) {
    engine.on_step([this] { mailbox.send(services.post); });
    if (!model.tokenizer) return;
    const auto grammars = [&](std::vector<std::int32_t> shown) {
      return std::make_unique<infer::Grammars>(*model.tokenizer, services.defaults.vocabulary, model.end_tokens,
                                               infer::Grammars::kMostBytes, std::move(shown));
    };
    services.grammars = grammars({});
    if (const auto& format = services.defaults.chat_format) services.call_grammars = grammars(format->marks());
  }

  // On the thread of the HTTP server.
  void begin_drain() {
    services.draining = true;
    engine.close();
    http.drain();
  }

  Context ctx;
  infer::Engine engine;
  Mailbox mailbox;
  Services services;
  Api api;
  HttpServer http;
  Worker worker{/*most=*/64};  // last: its jobs use all of the above
};

Server::Server(ServedModel model, const ServeOptions& options, const EngineOptions& engine, std::string key) {
  allow_many_files();
  impl_ = std::make_unique<Impl>(std::move(model), options, engine, std::move(key));
}

Server::~Server() = default;

std::uint16_t Server::port() const { return impl_->http.port(); }
Index Server::context() const { return impl_->engine.context(); }
Index Server::cache_tokens() const { return impl_->engine.cache_tokens(); }

void Server::run(bool signals, std::function<void(int)> on_signal) {
  if (signals)
    impl_->http.on_signal([this, heard = 0, on_signal = std::move(on_signal)](int number) mutable {
      if (on_signal) on_signal(number);
      ++heard == 1 ? impl_->begin_drain() : impl_->http.stop();
    });
  std::promise<void> ended;
  std::thread runs([this, over = ended.get_future()] {
    impl_->engine.run();
    if (!impl_->engine.lost_ranks()) return;
    drain();  // whoever waits for an answer is told
    if (over.wait_for(kLastWords) == std::future_status::timeout) impl_->http.stop();
  });
  impl_->http.run();
  ended.set_value();
  impl_->engine.stop();
  runs.join();
  if (const auto& lost = impl_->engine.lost_ranks()) throw *lost;
}

void Server::drain() {
  impl_->http.post([this] { impl_->begin_drain(); });
}

void Server::stop() { impl_->http.stop(); }

}  // namespace serve

}  // namespace dsmoe
