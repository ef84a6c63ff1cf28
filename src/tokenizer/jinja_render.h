// Runs a template.
#pragma once

#include <string>

#include "tokenizer/jinja_parser.h"

namespace dsmoe::jinja {

std::string render(const Block& block, Dict globals);

}  // namespace dsmoe::jinja
