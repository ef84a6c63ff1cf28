// What the endpoints work with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "dsmoe/model_config.h"
#include "infer/engine.h"
#include "infer/grammars.h"
#include "serve/parameters.h"

namespace dsmoe::serve {

struct Services {
  infer::Engine& engine;
  std::function<void(std::function<void()>)> post;  // to the thread of the HTTP server
  std::function<void(std::function<void()>)> tell;  // the same from the engine's thread, at the end of its step
  std::function<bool(std::function<void()>)> work;  // to a thread for what takes long; false when too much waits there
  RequestDefaults defaults;
  ModelConfig config = {};
  std::int64_t started = 0;                             // seconds since 1970
  std::unique_ptr<infer::Grammars> grammars = {};       // null without a tokenizer
  std::unique_ptr<infer::Grammars> call_grammars = {};  // with the tokens that mark calls of functions

  // Submits to the engine: an ApiError for a request that cannot run (400), or not now (429; 503 when the server ends).
  infer::RequestId submit(infer::Request request);
  bool draining = false;
  std::uint64_t replies = 0, calls = 0;  // for their ids
};

}  // namespace dsmoe::serve
