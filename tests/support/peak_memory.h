// How much more memory a call needed than the process had before it.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <fstream>

namespace dsmoe::testing {

inline std::size_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) << 10;
}

// At least: where the process had more at some time before, that much of it is not seen.
template <class Call>
std::size_t peak_growth(Call&& call) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak becomes what is used now, where the system can do that
  const std::size_t before = peak_bytes();
  call();
  return peak_bytes() - before;
}

}  // namespace dsmoe::testing
