// Where the weights of a model are that are used as they are stored.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "dsmoe/options.h"

namespace dsmoe {

enum class Storage : std::uint8_t {
  kMapped,  // in the mapped file: nothing to wait for, and processes share it
  kMemory,  // in memory of their own, read at once: the fastest to compute with
  kAuto,    // kMemory where there is room for it, else kMapped
};

template <>
struct OptionNames<Storage> {
  static constexpr std::array values = {std::pair{Storage::kAuto, "auto"}, std::pair{Storage::kMemory, "memory"},
                                        std::pair{Storage::kMapped, "map"}};
};

}  // namespace dsmoe
