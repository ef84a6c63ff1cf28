// How much of a GPU's memory a tensor takes. No CUDA headers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

namespace dsmoe::device {

// Rounded up so that blocks of like size are interchangeable: to an eighth of the power of two below.
constexpr std::size_t block_size(std::size_t bytes) {
  const std::size_t step = std::max<std::size_t>(std::bit_floor(bytes) / 8, 256);
  return (bytes + step - 1) / step * step;
}

}  // namespace dsmoe::device
