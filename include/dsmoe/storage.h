// Where a model's weights are kept when they are used as stored in the file.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "dsmoe/options.h"

namespace dsmoe {

enum class Storage : std::uint8_t {
  kMapped,  // mmap: starts at once, and processes share the memory
  kMemory,  // read into memory: the fastest to compute with
  kAuto,    // kMemory if they fit, else kMapped
};

template <>
struct OptionNames<Storage> {
  static constexpr std::array values = {std::pair{Storage::kAuto, "auto"}, std::pair{Storage::kMemory, "memory"},
                                        std::pair{Storage::kMapped, "map"}};
};

}  // namespace dsmoe
