// How much a test does when sanitizers watch it.
#pragma once

#include <algorithm>

namespace dsmoe::test {

#ifdef DSMOE_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Rounds over random cases: all of them without sanitizers, where every product is compared; a quarter with them, which
// look at memory and threads and take twenty times as long.
template <class Int>
constexpr Int rounds(Int all) {
  return kSanitized ? std::max<Int>(2, all / 4) : all;
}

}  // namespace dsmoe::test
