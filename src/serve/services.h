// What the endpoints work with.
#pragma once

#include <cstdint>
#include <functional>

#include "infer/engine.h"
#include "serve/parameters.h"

namespace dsmoe::serve {

struct Services {
  infer::Engine& engine;
  std::function<void(std::function<void()>)> post;  // to the thread of the HTTP server
  RequestDefaults defaults;
  std::int64_t started = 0;  // seconds since 1970

  // Submits to the engine: an ApiError for a request that cannot run (400), or not now (429; 503 when the server ends).
  infer::RequestId submit(infer::Request request);
  bool draining = false;
  std::uint64_t replies = 0;  // for their ids
};

}  // namespace dsmoe::serve
