#include "serve/embeddings.h"

#include "serve/api_error.h"
#include "serve/bodies.h"

namespace dsmoe::serve {

namespace {

struct Embeddings {
  Services& services;
  std::shared_ptr<HttpReply> reply;
  bool base64 = false;
  std::vector<infer::RequestId> ids;
  std::vector<std::vector<float>> vectors;
  Index tokens = 0;
  std::size_t ended = 0;
  bool done = false;

  void cancel() {
    done = true;
    for (const infer::RequestId id : ids) services.engine.cancel(id);
  }
  void on_end(std::size_t index, infer::Ended e);
  void finish();
};

void Embeddings::on_end(std::size_t index, infer::Ended e) {
  if (done) return;
  if (e.embedding.empty()) {
    cancel();
    const ApiError error = e.reason == infer::End::kTimeout ? ApiError(503, "the request's time is over", {}, "timeout")
                           : e.reason == infer::End::kCancelled
                               ? ApiError(503, "the server is being stopped", {}, "shutdown")
                               : ApiError(500, e.error ? e.error->what() : "the request failed");
    return reply->send(error.status, "application/json", error_body(error));
  }
  vectors[index] = std::move(e.embedding);
  tokens += e.prompt_tokens;
  if (++ended == vectors.size()) finish();
}

void Embeddings::finish() {
  done = true;
  OrderedJson data = OrderedJson::array();
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    const std::string_view bytes(reinterpret_cast<const char*>(vectors[i].data()), vectors[i].size() * sizeof(float));
    data.push_back({{"object", "embedding"},
                    {"index", i},
                    {"embedding", base64 ? OrderedJson(serve::base64(bytes)) : OrderedJson(vectors[i])}});
  }
  const OrderedJson body = {{"object", "list"},
                            {"data", std::move(data)},
                            {"model", services.defaults.model},
                            {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
  reply->send(200, "application/json", dumped(body));
}

}  // namespace

void begin_embeddings(Services& services, EmbeddingsRequest request, std::shared_ptr<HttpReply> reply) {
  const auto all = std::make_shared<Embeddings>(Embeddings{.services = services, .reply = reply, .base64 = request.base64});
  all->vectors.resize(request.inputs.size());
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    infer::Request r{.prompt = std::move(request.inputs[i]), .embedding = true};
    r.on_end = [all, i](infer::Ended e) {
      all->services.tell([all, i, e = std::move(e)]() mutable { all->on_end(i, std::move(e)); });
    };
    try {
      all->ids.push_back(services.submit(std::move(r)));
    } catch (...) {
      all->cancel();
      throw;
    }
  }
  reply->on_gone([all] { all->cancel(); });
}

}  // namespace dsmoe::serve
