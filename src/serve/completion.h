// Answers of /v1/chat/completions and /v1/completions: whole, or as they come.
#pragma once

#include <memory>

#include "serve/http_server.h"
#include "serve/services.h"

namespace dsmoe::serve {

// Throws an ApiError when the request cannot begin; from then on the reply gets an answer or an error.
void begin_completion(Services& services, CompletionRequest request, std::shared_ptr<HttpReply> reply);

}  // namespace dsmoe::serve
