// Codes of quantized numbers in registers, and the f32 and bf16 that they become. A code becomes an f32 by being put below
// the bits of 128 (or of 32768), and one multiply-add takes that away again. For the CPU too, where tests run it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "dsmoe/dtype.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define DSMOE_ANYWHERE __host__ __device__ __forceinline__
#else
#define DSMOE_ANYWHERE inline
#endif

namespace dsmoe::cuda::packed {

struct alignas(8) Words2 {
  std::uint32_t v[2];
};
struct alignas(16) Words4 {
  std::uint32_t v[4];
};

template <class T>
DSMOE_ANYWHERE T load(const std::uint8_t* from) {
  return *reinterpret_cast<const T*>(from);
}
// The same of a tile, which on a GPU is in its memory and does not change.
template <class T>
DSMOE_ANYWHERE T load_tile(const std::uint8_t* from) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 16) {
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
    return T{{v.x, v.y, v.z, v.w}};
  } else if constexpr (sizeof(T) == 8) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
    return T{{v.x, v.y}};
  } else {
    return __ldg(reinterpret_cast<const T*>(from));
  }
#else
  return load<T>(from);
#endif
}
template <class T>
DSMOE_ANYWHERE void save(std::uint8_t* to, T value) {
  *reinterpret_cast<T*>(to) = value;
}

DSMOE_ANYWHERE float half_to_float(std::uint16_t bits) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(bits));
#else
  return static_cast<float>(Float16::from_bits(bits));
#endif
}

// The f32 whose third byte is byte i of the word, below the byte `top`.
template <std::uint32_t kTop>
DSMOE_ANYWHERE float below(std::uint32_t word, int i) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(__byte_perm(word, kTop << 24, 0x7044u | static_cast<unsigned>(i) << 8));
#else
  return std::bit_cast<float>(kTop << 24 | (word >> (8 * i) & 0xffu) << 16);
#endif
}
// 128 + byte i of the word, which is below 128.
DSMOE_ANYWHERE float above_128(std::uint32_t word, int i) { return below<0x43>(word, i); }
// 32768 + byte i.
DSMOE_ANYWHERE float above_32768(std::uint32_t word, int i) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(__byte_perm(word, 0x47000000u, 0x7404u | static_cast<unsigned>(i) << 4));
#else
  return std::bit_cast<float>(0x47000000u | (word >> (8 * i) & 0xffu) << 8);
#endif
}

DSMOE_ANYWHERE std::uint32_t bf16_pair(float low, float high) {
#ifdef __CUDA_ARCH__
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&v);
#else
  return BFloat16(low).bits | static_cast<std::uint32_t>(BFloat16(high).bits) << 16;
#endif
}

DSMOE_ANYWHERE std::uint32_t rotate_left(std::uint32_t word, int by) {
#ifdef __CUDA_ARCH__
  return __funnelshift_l(word, word, static_cast<unsigned>(by));  // modulo 32
#else
  return std::rotl(word, by);
#endif
}

DSMOE_ANYWHERE std::uint16_t half_at(const std::uint8_t* bytes) {
  return static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8);
}

// The place in a row of number i < 4 of a lane's word of 16 numbers.
DSMOE_ANYWHERE int place(int step, int quad, int i) { return 16 * step + 2 * quad + i % 2 + i / 2 * 8; }

// (128 + code) * scale + offset of a word's four codes.
DSMOE_ANYWHERE void scaled(std::uint32_t word, float scale, float offset, std::uint32_t (&pairs)[2]) {
  float x[4];
  for (int i = 0; i < 4; ++i) x[i] = fmaf(above_128(word, i), scale, offset);
  pairs[0] = bf16_pair(x[0], x[1]), pairs[1] = bf16_pair(x[2], x[3]);
}

// Words of four-bit codes: of two steps, the first in the low halves.
DSMOE_ANYWHERE std::uint32_t nibbles(std::uint32_t word, int odd) { return (odd ? word >> 4 : word) & 0x0f0f0f0fu; }
template <class Code>
DSMOE_ANYWHERE std::uint32_t pack_nibbles(int steps, int quad, Code code) {  // steps 2 * steps and 2 * steps + 1
  std::uint32_t word = 0;
  for (int i = 0; i < 8; ++i)
    word |= static_cast<std::uint32_t>(code(place(2 * steps + i / 4, quad, i % 4)) & 15) << (i % 4 * 8 + i / 4 * 4);
  return word;
}

// Fifth bits: one word for 32 numbers of a row; those of a lane's step lie at bit 2 quad + step of every byte.
// kTo: the bit of every byte that they become.
template <int kTo = 4>
DSMOE_ANYWHERE std::uint32_t fifth_bits(std::uint32_t word, int quad, int step) {
  return rotate_left(word, (32 + kTo - 2 * quad - step) & 31) & (0x01010101u << kTo);
}
template <class Code>
DSMOE_ANYWHERE std::uint32_t pack_fifth_bits(int steps, Code code) {
  std::uint32_t word = 0;
  for (int i = 0; i < 32; ++i)
    word |= static_cast<std::uint32_t>(code(place(2 * steps + i / 16, i / 4 % 4, i % 4)) >> 4 & 1)
            << (i % 4 * 8 + i / 4 % 4 * 2 + i / 16);
  return word;
}

}  // namespace dsmoe::cuda::packed
