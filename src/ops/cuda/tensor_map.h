// Tensor maps for the copy engine: bf16, 128-byte swizzle, zeros outside the tensor.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

namespace dsmoe::cuda {

// Sizes and box from the innermost dimension out; strides in elements, of every dimension but the innermost.
bool try_tensor_map(CUtensorMap* map, const void* base, std::initializer_list<std::uint64_t> sizes,
                    std::initializer_list<std::uint64_t> strides, std::initializer_list<std::uint32_t> box);
CUtensorMap tensor_map(const void* base, std::initializer_list<std::uint64_t> sizes,
                       std::initializer_list<std::uint64_t> strides, std::initializer_list<std::uint32_t> box);

}  // namespace dsmoe::cuda
