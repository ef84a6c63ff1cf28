// The tables of docs/options.md: all options of the library, from where they are declared.
#pragma once

#include <string>

namespace dsmoe {

std::string options_markdown();

}  // namespace dsmoe
