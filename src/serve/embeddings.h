// Answers of /v1/embeddings: the mean of a text's last hidden states.
#pragma once

#include <memory>

#include "serve/http_server.h"
#include "serve/services.h"

namespace dsmoe::serve {

void begin_embeddings(Services& services, EmbeddingsRequest request, std::shared_ptr<HttpReply> reply);

}  // namespace dsmoe::serve
