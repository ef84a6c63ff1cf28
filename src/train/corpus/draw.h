// Random choices for one document of the built-in corpus, from the document's own stream of random numbers. Draw once per
// full expression: compilers differ in the order in which they evaluate arguments, and the texts would differ with it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/random.h"

namespace dsmoe::train::corpus {

class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t stream) : random_(seed, stream) {}

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_.below(next_++, n)); }
  int between(int low, int high) { return low + static_cast<int>(below(static_cast<std::size_t>(high - low + 1))); }
  bool chance(int percent) { return between(1, 100) <= percent; }

  template <class T, std::size_t N>
  const T& pick(const T (&list)[N]) {
    return list[below(N)];
  }
  template <class T, std::size_t N>
  const T& pick_other(const T (&list)[N], const T& than) {  // than: an element of the list
    const auto taken = static_cast<std::size_t>(&than - list);
    const std::size_t i = below(N - 1);
    return list[i < taken ? i : i + 1];
  }

 private:
  Philox random_;
  std::uint64_t next_ = 0;
};

}  // namespace dsmoe::train::corpus
