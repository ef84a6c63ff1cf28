#include "serve/api.h"

#include <fmt/format.h>

#include "core/printable.h"
#include "serve/api_error.h"
#include "serve/bodies.h"
#include "serve/completion.h"
#include "serve/embeddings.h"
#include "serve/metrics.h"
#include "serve/page.h"
#include "serve/props.h"

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

namespace {

constexpr std::string_view kModelPath = "/v1/models/";  // with a name behind it

OrderedJson model_json(const Services& services) {
  return {{"id", services.defaults.model},
          {"object", "model"},
          {"created", services.started},
          {"owned_by", "dsmoe"},
          {"max_model_len", services.engine.context()}};
}

std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool code = text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += code ? static_cast<char>(16 * digit(text[i + 1]) + digit(text[i + 2])) : text[i];
    if (code) i += 2;
  }
  return out;
}

}  // namespace

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
      {"GET", "/props", &Api::props},
      {"POST", "/tokenize", &Api::tokenize},
      {"POST", "/detokenize", &Api::detokenize},
      {"POST", "/apply-template", &Api::apply_template},
  };
  return all;
}

void Api::check_sender(const HttpRequest& request) const {
  if (!options_.hosts.allows(request.host))
    throw ApiError(
        403,
        fmt::format("the Host header is {}, which is not a name of this server; start it with allowed-host if it is",
                    in_quotes(request.host)),
        {}, "host_not_allowed");
  // Such a page could not read the answer, but without this it could have the model work. Pages of the same site are from
  // elsewhere, too: another port of this machine. Browsers leave Sec-Fetch-Site out if neither TLS nor loopback protects
  // the request; programs send no Origin.
  const bool welcome = options_.cors == "*" || (!options_.cors.empty() && request.origin == options_.cors);
  const bool own = request.fetch_site.empty()
                       ? request.origin.empty() || options_.hosts.is_own(request.origin, request.host)
                       : request.fetch_site == "same-origin" || request.fetch_site == "none";
  if (request.method == "POST" && !own && !welcome)
    throw ApiError(
        403,
        fmt::format(
            "a web page of {} asks; start the server with cors-origin if it may, or with allowed-host if it is its own",
            in_quotes(request.origin)),
        {}, "origin_not_allowed");
}

void Api::check_key(const HttpRequest& request) const {
  if (options_.key.empty()) return;
  constexpr std::string_view kBearer = "Bearer ";
  const bool bearer = request.authorization.starts_with(kBearer);
  if (!bearer || !same_key(std::string_view(request.authorization).substr(kBearer.size()), options_.key))
    throw ApiError(401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'", {}, "invalid_api_key");
}

void Api::dispatch(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  check_sender(request);
  if (request.method == "OPTIONS" && !options_.cors.empty()) return reply->send(204, "text/plain", "");
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  const PageFile* const file = options_.page ? find_page_file(request.path) : nullptr;
  // Anyone may load the page: it asks for the key itself, since a browser sends none with an address.
  if (file && method == "GET") return send_page_file(*file, request, *reply);
  std::string_view known = file ? "GET" : "";
  for (const Route& route : routes()) {
    if (request.path != route.path) continue;
    known = route.method;
    if (method != route.method) continue;
    if (!route.open) check_key(request);
    return (this->*route.handler)(request, reply);
  }
  if (method == "GET" && request.path.starts_with(kModelPath)) return model(request, reply);
  if (!known.empty()) {
    ApiError error(405, fmt::format("{} is not for {}", request.path, printable(request.method, 20)), {},
                   "method_not_allowed");
    error.allow = known == "GET" ? "GET, HEAD" : known;
    throw error;
  }
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
  reply->send(200, "application/json", dumped({{"object", "list"}, {"data", OrderedJson::array({model_json(services_)})}}));
}

void Api::model(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  check_key(request);
  const std::string name = percent_decoded(std::string_view(request.path).substr(kModelPath.size()));
  if (name != services_.defaults.model)
    throw ApiError(
        404,
        fmt::format("there is no model {} here; this server has {}", in_quotes(name), in_quotes(services_.defaults.model)),
        "model", "model_not_found");
  reply->send(200, "application/json", dumped(model_json(services_)));
}

void Api::health(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  if (services_.draining) throw ApiError(503, "the server is being stopped", {}, "shutdown");
  reply->send(200, "application/json", R"({"status":"ok"})");
}

void Api::metrics(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  reply->send(200, "text/plain; version=0.0.4; charset=utf-8", metrics_text(services_.engine.stats()));
}

void Api::props(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  reply->send(200, "application/json", props_body(services_));
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
  reply->send(200, "application/json", dumped({{"prompt", read_template(request.body, services_.defaults)}}));
}

}  // namespace dsmoe::serve
