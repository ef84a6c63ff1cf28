#include "serve/completion.h"

#include <fmt/format.h>

#include <chrono>

#include "serve/api_error.h"
#include "serve/bodies.h"
#include "serve/call_parser.h"

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
  std::optional<CallParser> parser;   // with tools
  std::vector<CalledFunction> calls;  // that it found, in answers that are no stream
};

// Nine letters and digits, which is what Mistral's templates want; others take anything. Different for each number.
std::string call_id(std::uint64_t number) {
  static constexpr std::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string out;
  for (int i = 0; i < 9; ++i, number /= kDigits.size()) out += kDigits[number % kDigits.size()];
  return out;
}

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

// One request and its choices. The engine's callbacks are told to the server's thread; everything here runs there.
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
  std::shared_ptr<infer::TokenMask> mask() const;
  infer::Request prepared(const infer::Request& from, std::size_t index, Index number);
  void cancel();
  void on_prompt(std::size_t index, infer::PromptDone prompt);
  void on_token(std::size_t index, infer::Token token);
  void on_end(std::size_t index, infer::Ended ended);
  void take_calls(std::size_t index, const std::vector<CallEvent>& events);
  void stream_part(std::size_t index, const std::string& text);
  void stream_text(std::size_t index, const std::string& text);
  void stream_delta(std::size_t index, OrderedJson delta);
  void stream_end(std::size_t index);
  void finish();
  void fail(const ApiError& error);
  OrderedJson envelope(bool chunk) const;
  OrderedJson choice_json(std::size_t index, OrderedJson content, const char* finish);
  OrderedJson message_json(const Choice& choice) const;
  const char* finish_of(const Choice& choice) const;
  std::string next_call_id() {
    return call_id(static_cast<std::uint64_t>(services_.started) * 1'000'000 + ++services_.calls);
  }
  Usage usage() const;
  const std::optional<Tokenizer>& tokenizer() const { return services_.defaults.tokenizer; }
  bool wants_logprobs() const { return request_.prompts[0].logprobs >= 0; }

  Services& services_;
  CompletionRequest request_;
  std::shared_ptr<HttpReply> reply_;
  std::shared_ptr<const grammar::CompiledGrammar> grammar_;
  std::string id_, event_start_;
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
      made = (self->request_.tools ? self->services_.call_grammars : self->services_.grammars)->compiled(source);
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
    if (request_.tools) choices_[i].parser.emplace(*request_.tools->syntax, request_.tools->functions);
    try {
      choices_[i].id = services_.submit(prepared(prompt, i, static_cast<Index>(i) % request_.n));
    } catch (...) {
      cancel();
      throw;
    }
  }
  reply_->on_gone([self = shared_from_this()] { self->cancel(); });
}

std::shared_ptr<infer::TokenMask> Completion::mask() const {
  if (!request_.tools || !request_.tools->lazy) return std::make_shared<infer::GrammarMask>(grammar_);
  const CallSyntax& syntax = *request_.tools->syntax;
  std::vector<infer::GrammarTrigger> triggers = {{.text = syntax.opening()}};
  for (const char* start : syntax.starts) triggers.push_back({.text = start, .at_start = true});
  return std::make_shared<infer::LazyGrammarMask>(grammar_, *tokenizer(), std::move(triggers));
}

// A choice's own seed: the first has the request's, so that one answer does not depend on how many there are.
infer::Request Completion::prepared(const infer::Request& from, std::size_t index, Index number) {
  infer::Request r = from;
  r.options.sampler.seed += static_cast<std::uint64_t>(number);
  r.shared_prompt = number == 0 && request_.n > 1;
  if (number > 0) r.after = choices_[index - static_cast<std::size_t>(number)].id;
  if (grammar_) r.mask = mask();
  const auto post = [self = shared_from_this(), index](auto member) {
    return [self, index, member](auto event) {
      self->services_.tell([self, index, member, event = std::move(event)]() mutable {
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
  if (c.parser) {
    take_calls(index, c.parser->push(token.text));
    if (!request_.stream || (c.logprobs.empty() && c.routing.tokens == 0)) return;
    token.text.clear();  // what it was about is still to be sent
  }
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
  if (choices_[index].parser) take_calls(index, choices_[index].parser->finish());
  choices_[index].ended = std::move(ended);
  ++ended_;
  if (request_.stream) stream_end(index);
  if (ended_ == choices_.size()) finish();
}

OrderedJson Completion::envelope(bool chunk) const {
  const char* const object = !request_.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", services_.defaults.model}};
}

void Completion::take_calls(std::size_t index, const std::vector<CallEvent>& events) {
  Choice& c = choices_[index];
  for (const CallEvent& event : events) {
    const bool begins = event.kind == CallEvent::Kind::kCall;
    if (event.kind == CallEvent::Kind::kText) {
      c.text += event.text;
      if (request_.stream) stream_part(index, event.text);
      continue;
    }
    if (begins) c.calls.push_back({next_call_id(), event.text, ""});
    if (!begins) c.calls.back().arguments += event.text;
    if (!request_.stream) continue;
    OrderedJson call = {{"index", c.calls.size() - 1}};
    if (begins) call["id"] = c.calls.back().id, call["type"] = "function";
    if (begins)
      call["function"] = {{"name", event.text}, {"arguments", ""}};
    else
      call["function"] = {{"arguments", event.text}};
    OrderedJson delta = OrderedJson::object();
    if (!c.begun) delta["content"] = nullptr;
    delta["tool_calls"] = OrderedJson::array({std::move(call)});
    stream_delta(index, std::move(delta));
  }
}

const char* Completion::finish_of(const Choice& c) const {
  const char* const reason = finish_reason(c.ended->reason);
  return !c.calls.empty() && std::string_view(reason) == "stop" ? "tool_calls" : reason;
}

OrderedJson Completion::message_json(const Choice& c) const {
  OrderedJson message = {{"role", "assistant"}, {"content", c.text}};
  if (c.calls.empty()) return message;
  if (c.text.empty()) message["content"] = nullptr;
  OrderedJson calls = OrderedJson::array();
  for (const CalledFunction& call : c.calls)
    calls.push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  message["tool_calls"] = std::move(calls);
  return message;
}

// `content` is the text, the message, or its next part. Takes the log probabilities and the routing that are there.
OrderedJson Completion::choice_json(std::size_t index, OrderedJson content, const char* finish) {
  Choice& c = choices_[index];
  OrderedJson out = {{"index", index}};
  out[!request_.chat ? "text" : request_.stream ? "delta" : "message"] = std::move(content);
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

// One event of a stream: a part of a text, or of a chat's message; null for the last.
void Completion::stream_delta(std::size_t index, OrderedJson content) {
  if (!std::exchange(started_, true)) reply_->start("text/event-stream");
  Choice& c = choices_[index];
  const bool last = content.is_null();
  if (last) content = request_.chat ? OrderedJson::object() : OrderedJson("");
  if (request_.chat && !c.begun) {
    OrderedJson delta = {{"role", "assistant"}};
    delta.update(content);
    content = std::move(delta);
  }
  OrderedJson body = envelope(true);
  OrderedJson choices = OrderedJson::array();
  choices.push_back(choice_json(index, std::move(content), last ? finish_of(c) : nullptr));
  body["choices"] = std::move(choices);
  reply_->write(sse_event(body));
}

// Most events of a stream differ only in their text: this makes what stream_delta() would, without its trees.
void Completion::stream_text(std::size_t index, const std::string& text) {
  if (event_start_.empty()) {
    event_start_ = sse_event(envelope(true));
    event_start_.erase(event_start_.rfind('}'));
  }
  reply_->write(fmt::format(R"({},"choices":[{{"index":{},{}{}{},"logprobs":null,"finish_reason":null}}]}}{})",
                            event_start_, index, request_.chat ? R"("delta":{"content":)" : R"("text":)",
                            dumped(OrderedJson(text)), request_.chat ? "}" : "", "\n\n"));
}

void Completion::stream_part(std::size_t index, const std::string& text) {
  const Choice& c = choices_[index];
  if (c.begun && c.logprobs.empty() && c.routing.tokens == 0)
    stream_text(index, text);
  else
    stream_delta(index, request_.chat ? OrderedJson{{"content", text}} : OrderedJson(text));
}

void Completion::stream_end(std::size_t index) {
  if (!choices_[index].begun) stream_part(index, "");
  stream_delta(index, nullptr);
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
    choices.push_back(
        choice_json(i, request_.chat ? message_json(choices_[i]) : OrderedJson(choices_[i].text), finish_of(choices_[i])));
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
