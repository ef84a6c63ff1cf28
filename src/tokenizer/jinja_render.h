// Runs a template.
#pragma once

#include "tokenizer/jinja_parser.h"

namespace dsmoe::jinja {

Text render(const Block& block, Dict globals);

}  // namespace dsmoe::jinja
