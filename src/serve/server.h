// The engine on one thread and HTTP on another: the whole server.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dsmoe/engine_options.h"
#include "dsmoe/generate_options.h"
#include "dsmoe/serve_options.h"
#include "dsmoe/tokenizer.h"
#include "model/transformer.h"

namespace dsmoe::serve {

struct ServedModel {
  std::string name;
  const Transformer* transformer = nullptr;  // must stay
  std::optional<Tokenizer> tokenizer;
  SamplerOptions sampler;                // what requests begin with
  std::vector<std::int32_t> end_tokens;  // of the model
};

class Server {
 public:
  // Listens from here on. `key`: that clients must have, "" for none.
  Server(ServedModel model, const ServeOptions& options, const EngineOptions& engine, std::string key = {});
  ~Server();

  std::uint16_t port() const;
  Index context() const;
  Index cache_tokens() const;
  // Until drain() has let all requests end, or stop(). With `signals`, the first SIGINT or SIGTERM drains, the second
  // stops; `on_signal` hears of each. Throws when the other ranks of a model wait for this one and it cannot go on.
  void run(bool signals = false, std::function<void(int signal)> on_signal = {});
  void drain();  // from any thread, like stop()
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsmoe::serve
