#include "serve/api.h"

#include <fmt/format.h>

#include "core/printable.h"
#include "serve/api_error.h"
#include "serve/bodies.h"
#include "serve/completion.h"
#include "serve/embeddings.h"
#include "serve/metrics.h"

namespace dsmoe::serve {

infer::RequestId Services::submit(infer::Request request) {
  if (draining) throw ApiError(503, "the server is being stopped", {}, "shutdown");
  std::optional<infer::RequestId> id;
  try {
    id = engine.submit(std::move(request));
  } catch (const Error& e) {
    const bool too_long = std::string_view(e.what()).find("context") != std::string_view::npos;
    throw ApiError(400, e.what(), {}, too_long ? "context_length_exceeded" : "invalid_value");
  }
  if (!id) throw ApiError(429, "too many requests wait already; try again later", {}, "rate_limit_exceeded");
  return *id;
}

bool same_key(std::string_view given, std::string_view wanted) {
  unsigned difference = given.size() == wanted.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |=
        static_cast<unsigned char>(given[i]) ^ static_cast<unsigned>(static_cast<unsigned char>(wanted[i % wanted.size()]));
  return difference == 0;
}

struct Api::Route {
  const char *method, *path;
  void (Api::*handler)(const HttpRequest&, const std::shared_ptr<HttpReply>&);
  bool open = false;  // without a key
};

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> all = {
      {"POST", "/v1/chat/completions", &Api::chat},
      {"POST", "/v1/completions", &Api::completions},
      {"POST", "/v1/embeddings", &Api::embeddings},
      {"GET", "/v1/models", &Api::models},
      {"GET", "/health", &Api::health, true},
      {"GET", "/metrics", &Api::metrics},
      {"POST", "/tokenize", &Api::tokenize},
      {"POST", "/detokenize", &Api::detokenize},
      {"POST", "/apply-template", &Api::apply_template},
  };
  return all;
}

void Api::check_key(const HttpRequest& request) const {
  if (options_.key.empty()) return;
  constexpr std::string_view kBearer = "Bearer ";
  const bool bearer = request.authorization.starts_with(kBearer);
  if (!bearer || !same_key(std::string_view(request.authorization).substr(kBearer.size()), options_.key))
    throw ApiError(401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'", {}, "invalid_api_key");
}

void Api::dispatch(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  if (request.method == "OPTIONS" && !options_.cors.empty()) return reply->send(204, "text/plain", "");
  bool known = false;
  for (const Route& route : routes()) {
    if (request.path != route.path) continue;
    known = true;
    if (request.method != route.method) continue;
    if (!route.open) check_key(request);
    return (this->*route.handler)(request, reply);
  }
  if (known)
    throw ApiError(405, fmt::format("{} is not for {}", request.path, printable(request.method, 20)), {},
                   "method_not_allowed");
  throw ApiError(404, fmt::format("there is no {} here", in_quotes(request.path)), {}, "not_found");
}

void Api::handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  std::optional<ApiError> error;
  try {
    return dispatch(request, reply);
  } catch (const ApiError& e) {
    error = e;
  } catch (const Error& e) {  // a template or a tokenizer that refuses its input
    error = ApiError(e.code() == ErrorCode::kInternal ? 500 : 400, e.what());
  } catch (const std::exception& e) {
    error = ApiError(500, e.what());
  }
  reply->send(error->status, "application/json", error_body(*error), error_headers(*error));
}

void Api::chat(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  begin_completion(services_, read_chat(request.body, services_.defaults), reply);
}

void Api::completions(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  begin_completion(services_, read_completion(request.body, services_.defaults), reply);
}

void Api::embeddings(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  begin_embeddings(services_, read_embeddings(request.body, services_.defaults), reply);
}

void Api::models(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  OrderedJson data = OrderedJson::array();
  data.push_back({{"id", services_.defaults.model},
                  {"object", "model"},
                  {"created", services_.started},
                  {"owned_by", "dsmoe"},
                  {"max_model_len", services_.engine.context()}});
  reply->send(200, "application/json", dumped({{"object", "list"}, {"data", std::move(data)}}));
}

void Api::health(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  if (services_.draining) throw ApiError(503, "the server is being stopped", {}, "shutdown");
  reply->send(200, "application/json", R"({"status":"ok"})");
}

void Api::metrics(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  reply->send(200, "text/plain; version=0.0.4; charset=utf-8", metrics_text(services_.engine.stats()));
}

const Tokenizer& Api::tokenizer() const {
  if (!services_.defaults.tokenizer) throw ApiError(400, "this model has no tokenizer", {}, "no_tokenizer");
  return *services_.defaults.tokenizer;
}

void Api::tokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const TokenizeRequest r = read_tokenize(request.body);
  EncodeOptions options{.add_eos = false, .parse_special = r.parse_special};
  if (!r.add_special) options.add_bos = false;
  OrderedJson tokens = OrderedJson::array();
  for (const std::int32_t id : tokenizer().encode(r.content, options)) {
    if (r.with_pieces)
      tokens.push_back({{"id", id}, {"piece", tokenizer().piece(id)}});
    else
      tokens.push_back(id);
  }
  reply->send(200, "application/json", dumped({{"tokens", std::move(tokens)}}));
}

void Api::detokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const std::vector<std::int32_t> ids = read_detokenize(request.body, services_.defaults);
  reply->send(200, "application/json", dumped({{"content", tokenizer().decode(ids)}}));
}

void Api::apply_template(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const std::vector<ChatMessage> messages = read_template(request.body);
  if (tokenizer().chat_template().empty()) throw ApiError(400, "this model has no chat template", {}, "no_chat_template");
  reply->send(200, "application/json", dumped({{"prompt", render_chat(tokenizer(), messages).text}}));
}

}  // namespace dsmoe::serve
