#include "serve/completion.h"

#include <fmt/format.h>

#include <chrono>

#include "serve/api_error.h"
#include "serve/bodies.h"

namespace dsmoe::serve {

namespace {

struct Choice {
  infer::RequestId id = 0;
  std::vector<std::int32_t> prompt;
  std::string text;  // that was given out, in a stream
  std::vector<infer::TokenLogprobs> logprobs;
  std::size_t logprob_offset = 0;
  bool first_is_null = false;  // of the log probabilities
  infer::RoutingTrace routing;
  bool begun = false;  // in a stream
  std::optional<infer::Ended> ended;
};

void add_routing(infer::RoutingTrace& to, infer::RoutingTrace from) {
  if (from.tokens == 0) return;
  if (to.tokens == 0) {
    to = std::move(from);
    return;
  }
  to.tokens += from.tokens;
  for (std::size_t l = 0; l < to.layers.size(); ++l) {
    auto &a = to.layers[l], &b = from.layers[l];
    a.experts.insert(a.experts.end(), b.experts.begin(), b.experts.end());
    a.weights.insert(a.weights.end(), b.weights.begin(), b.weights.end());
  }
}

// One request and its choices. The engine's callbacks are posted to the server's thread; everything here runs there.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(Services& services, CompletionRequest request, std::shared_ptr<HttpReply> reply)
      : services_(services), request_(std::move(request)), reply_(std::move(reply)) {
    using namespace std::chrono;
    created_ = duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
    id_ = fmt::format("{}-{:x}-{}", request_.chat ? "chatcmpl" : "cmpl", services_.started, ++services_.replies);
  }

  void begin();
  void begin_within_grammar();  // when it is compiled

 private:
  infer::Request prepared(const infer::Request& from, std::size_t index, Index number);
  void cancel();
  void on_prompt(std::size_t index, infer::PromptDone prompt);
  void on_token(std::size_t index, infer::Token token);
  void on_end(std::size_t index, infer::Ended ended);
  void stream_part(std::size_t index, const std::string& text);
  void stream_end(std::size_t index);
  void finish();
  void fail(const ApiError& error);
  OrderedJson envelope(bool chunk) const;
  OrderedJson choice_json(std::size_t index, bool chunk, const std::string& text, const char* finish);
  Usage usage() const;
  const std::optional<Tokenizer>& tokenizer() const { return services_.defaults.tokenizer; }
  bool wants_logprobs() const { return request_.prompts[0].logprobs >= 0; }

  Services& services_;
  CompletionRequest request_;
  std::shared_ptr<HttpReply> reply_;
  std::shared_ptr<const grammar::CompiledGrammar> grammar_;
  std::string id_;
  std::int64_t created_ = 0;
  std::vector<Choice> choices_;
  std::size_t ended_ = 0;
  bool started_ = false, done_ = false;
};

void Completion::begin_within_grammar() {
  const bool added = services_.work([self = shared_from_this()] {
    std::shared_ptr<const grammar::CompiledGrammar> made;
    std::shared_ptr<const ApiError> error;  // not copies: they share their text, unseen by the thread sanitizer
    const infer::GrammarSource& source = *self->request_.grammar;
    try {
      made = self->services_.grammars->compiled(source);
    } catch (const Error& e) {
      error =
          std::make_shared<ApiError>(e.code() == ErrorCode::kInternal ? 500 : 400, e.what(), source.where, "invalid_value");
    } catch (const std::exception& e) {
      error = std::make_shared<ApiError>(500, e.what());
    }
    self->services_.post([self, made, error] {
      if (self->reply_->gone()) return;
      if (error) return self->fail(*error);
      self->grammar_ = made;
      try {
        self->begin();
      } catch (const ApiError& e) {
        self->fail(e);
      }
    });
  });
  if (!added) throw ApiError(429, "too many grammars wait to be compiled; try again later", {}, "rate_limit_exceeded");
}

void Completion::begin() {
  const std::size_t count = request_.prompts.size() * static_cast<std::size_t>(request_.n);
  choices_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const infer::Request& prompt = request_.prompts[i / static_cast<std::size_t>(request_.n)];
    choices_[i].prompt = prompt.prompt;
    try {
      choices_[i].id = services_.submit(prepared(prompt, i, static_cast<Index>(i) % request_.n));
    } catch (...) {
      cancel();
      throw;
    }
  }
  reply_->on_gone([self = shared_from_this()] { self->cancel(); });
}

// A choice's own seed: the first has the request's, so that one answer does not depend on how many there are.
infer::Request Completion::prepared(const infer::Request& from, std::size_t index, Index number) {
  infer::Request r = from;
  r.options.sampler.seed += static_cast<std::uint64_t>(number);
  if (grammar_) r.mask = std::make_shared<infer::GrammarMask>(grammar_);
  const auto post = [self = shared_from_this(), index](auto member) {
    return [self, index, member](auto event) {
      self->services_.post([self, index, member, event = std::move(event)]() mutable {
        if (!self->done_) ((*self).*member)(index, std::move(event));
      });
    };
  };
  if (request_.echo) r.on_prompt = post(&Completion::on_prompt);
  r.on_token = post(&Completion::on_token);
  r.on_end = post(&Completion::on_end);
  return r;
}

void Completion::cancel() {
  done_ = true;
  for (const Choice& c : choices_)
    if (c.id != 0 && !c.ended) services_.engine.cancel(c.id);
}

void Completion::on_prompt(std::size_t index, infer::PromptDone prompt) {
  Choice& c = choices_[index];
  if (wants_logprobs()) {
    c.logprobs.push_back({.token = {c.prompt[0], 0}, .top = {}});
    c.first_is_null = true;
    for (auto& l : prompt.logprobs) c.logprobs.push_back(std::move(l));
  }
  const std::string text = tokenizer() ? tokenizer()->decode(c.prompt, {.skip_special = true}) : std::string();
  if (request_.stream) return stream_part(index, text);
  c.text = text;
}

void Completion::on_token(std::size_t index, infer::Token token) {
  Choice& c = choices_[index];
  if (token.logprobs) c.logprobs.push_back(std::move(*token.logprobs));
  add_routing(c.routing, std::move(token.routing));
  if (!request_.stream) {
    c.text += token.text;
    return;
  }
  if (!token.text.empty() || !c.logprobs.empty() || c.routing.tokens > 0 || !tokenizer()) stream_part(index, token.text);
}

void Completion::on_end(std::size_t index, infer::Ended ended) {
  if (ended.reason == infer::End::kError)
    return fail(ApiError(500, ended.error ? ended.error->what() : "the request failed"));
  if (ended.reason == infer::End::kCancelled) return fail(ApiError(503, "the server is being stopped", {}, "shutdown"));
  choices_[index].ended = std::move(ended);
  ++ended_;
  if (request_.stream) stream_end(index);
  if (ended_ == choices_.size()) finish();
}

OrderedJson Completion::envelope(bool chunk) const {
  const char* const object = !request_.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", services_.defaults.model}};
}

// Takes the log probabilities and the routing that are there.
OrderedJson Completion::choice_json(std::size_t index, bool chunk, const std::string& text, const char* finish) {
  Choice& c = choices_[index];
  OrderedJson out = {{"index", index}};
  if (!request_.chat) {
    out["text"] = text;
  } else if (!chunk) {
    out["message"] = {{"role", "assistant"}, {"content", text}};
  } else {
    OrderedJson delta = OrderedJson::object();
    if (!c.begun) delta["role"] = "assistant";
    if (!finish) delta["content"] = text;
    out["delta"] = std::move(delta);
  }
  out["logprobs"] = nullptr;
  if (wants_logprobs() && !c.logprobs.empty()) {
    out["logprobs"] = request_.chat ? chat_logprobs(c.logprobs, tokenizer())
                                    : text_logprobs(c.logprobs, tokenizer(), c.first_is_null, c.logprob_offset);
    c.logprobs.clear();
    c.first_is_null = false;
  }
  if (c.routing.tokens > 0) out["routing"] = routing_json(std::exchange(c.routing, {}));
  out["finish_reason"] = finish ? OrderedJson(finish) : OrderedJson();
  c.begun = true;
  return out;
}

void Completion::stream_part(std::size_t index, const std::string& text) {
  if (!std::exchange(started_, true)) reply_->start("text/event-stream");
  OrderedJson body = envelope(true);
  OrderedJson choices = OrderedJson::array();
  choices.push_back(choice_json(index, true, text, nullptr));
  body["choices"] = std::move(choices);
  choices_[index].logprob_offset += text.size();
  reply_->write(sse_event(body));
}

void Completion::stream_end(std::size_t index) {
  if (!choices_[index].begun) stream_part(index, "");
  OrderedJson body = envelope(true);
  OrderedJson choices = OrderedJson::array();
  choices.push_back(choice_json(index, true, "", finish_reason(choices_[index].ended->reason)));
  body["choices"] = std::move(choices);
  reply_->write(sse_event(body));
}

Usage Completion::usage() const {
  Usage u;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const infer::Ended& e = *choices_[i].ended;
    u.completion += e.generated_tokens;
    if (i % static_cast<std::size_t>(request_.n) > 0) continue;  // a prompt counts once
    u.prompt += e.prompt_tokens;
    u.cached += e.cached_tokens;
  }
  return u;
}

void Completion::finish() {
  done_ = true;
  if (request_.stream) {
    if (request_.include_usage) {
      OrderedJson body = envelope(true);
      body["choices"] = OrderedJson::array();
      body["usage"] = usage_json(usage());
      reply_->write(sse_event(body));
    }
    reply_->write("data: [DONE]\n\n");
    return reply_->finish();
  }
  OrderedJson body = envelope(false);
  OrderedJson choices = OrderedJson::array();
  for (std::size_t i = 0; i < choices_.size(); ++i)
    choices.push_back(choice_json(i, false, choices_[i].text, finish_reason(choices_[i].ended->reason)));
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(usage());
  reply_->send(200, "application/json", dumped(body));
}

void Completion::fail(const ApiError& error) {
  cancel();
  if (!started_) return reply_->send(error.status, "application/json", error_body(error), error_headers(error));
  reply_->write("data: " + error_body(error) + "\n\n");
  reply_->finish();
}

}  // namespace

void begin_completion(Services& services, CompletionRequest request, std::shared_ptr<HttpReply> reply) {
  const bool constrained = request.grammar.has_value();
  const auto completion = std::make_shared<Completion>(services, std::move(request), std::move(reply));
  constrained ? completion->begin_within_grammar() : completion->begin();
}

}  // namespace dsmoe::serve
