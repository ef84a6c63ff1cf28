// GET /props: what a client may want to know of the model before it asks, as llama.cpp's server has it, and its experts.
#pragma once

#include <string>

#include "serve/services.h"

namespace dsmoe::serve {

std::string props_body(const Services& services);

}  // namespace dsmoe::serve
