// The endpoints: which path does what, who may ask, and errors in OpenAI's form.
#pragma once

#include <string>

#include "serve/host_check.h"
#include "serve/http_server.h"
#include "serve/services.h"

namespace dsmoe::serve {

struct ApiOptions {
  std::string key;   // that clients must have; "": none
  bool page = true;  // at /
  std::string cors;  // the origin that pages of other servers may have; "": none, "*": any
  HostCheck hosts;
};

class Api {
 public:
  Api(Services& services, ApiOptions options) : services_(services), options_(std::move(options)) {}

  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply);

 private:
  struct Route;
  static const std::vector<Route>& routes();

  void dispatch(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void check_sender(const HttpRequest& request) const;  // that it is no web page from elsewhere
  void check_key(const HttpRequest& request) const;
  HttpHeaders headers() const;
  void chat(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void completions(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void embeddings(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void models(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void model(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void health(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void metrics(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void props(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void tokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void detokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void apply_template(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  const Tokenizer& tokenizer() const;

  Services& services_;
  ApiOptions options_;
};

// Takes as long for a wrong key as for the right one: only its length can be told from the time.
bool same_key(std::string_view given, std::string_view wanted);

}  // namespace dsmoe::serve
