// What roles (Parameter::role) are called in a GGUF file, family by family.
#pragma once

#include <span>
#include <string_view>

namespace dsmoe {

struct GgufName {
  std::string_view role, name;  // in a layer without "blk.N."
  bool pairs_of_rows = false;   // rows are ordered by gguf_row
};

// In the order of a token's way through the model, which is that in which we write them.
struct GgufNames {
  std::span<const GgufName> before, layer, after;
};

const GgufNames& gguf_names(std::string_view model_type);  // an Error for a family that has none

}  // namespace dsmoe
