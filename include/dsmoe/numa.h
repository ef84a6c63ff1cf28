// How memory and threads are laid out on a machine with several memory nodes: several sockets, or one that is split.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "dsmoe/options.h"

namespace dsmoe {

enum class Numa : std::uint8_t {
  kOff,         // as the system does it
  kDistribute,  // over all nodes: each has its share of every matrix, and threads that stay with it
  kIsolate,     // only the cores of the node on which the process is now
  kNumactl,     // as numactl, under which the program was started, has set it; the same as off
};

template <>
struct OptionNames<Numa> {
  static constexpr std::array values = {std::pair{Numa::kOff, "off"}, std::pair{Numa::kDistribute, "distribute"},
                                        std::pair{Numa::kIsolate, "isolate"}, std::pair{Numa::kNumactl, "numactl"}};
};

}  // namespace dsmoe
