// Quantized matrices in the order in which a GPU reads them. Eight rows are a tile; the GGUF blocks of a tile that start at
// one k lie together, as many bytes as in a file, in the order of a fragment of mma.sync m16n8k16: lane 4 row + quad has,
// of every 16 numbers, those at 2 quad, 2 quad + 1, 2 quad + 8 and 2 quad + 9 as one word of four codes.
//
// A number is what ops/quantize.h says, rounded to bf16. A code becomes an f32 by being put below the bits of 128 (or of
// 32768), and one multiply-add takes that away again: every such step is exact, since an f16 scale has 11 bits and the
// constants few. Only the subtraction of a minimum rounds, as it does on the CPU. (Zero times a negative scale is +0 here.)
//
// For the CPU too, where tests run it.
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

inline constexpr int kTileRows = 8;

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

// Each Block has: kNumbers and kBytes of one row's GGUF block; pack(), which writes what one lane has of a tile; Lane, what
// a lane needs of it in registers; and step(), two pairs of bf16: a lane's part of 16 numbers. Those with kTwoWays also
// have step<true>(), which takes fewer operations, for lanes that are near(): the same numbers.
template <DType>
struct Block;

template <>
struct Block<DType::kQ8_0> {
  static constexpr bool kTwoWays = false;
  static constexpr int kNumbers = 32, kBytes = 34;
  static constexpr int kScales = 256;  // f16, behind the codes
  struct Lane {
    Words2 codes;
    float scale, offset;
  };
  static DSMOE_ANYWHERE void pack(const std::uint8_t* block, int row, int quad, std::uint8_t* tile) {
    for (int i = 0; i < 8; ++i)
      tile[(4 * row + quad) * 8 + i] = static_cast<std::uint8_t>(block[2 + place(i / 4, quad, i % 4)] ^ 0x80);
    if (quad == 0) save(tile + kScales + row * 2, half_at(block));
  }
  static DSMOE_ANYWHERE Lane load_lane(const std::uint8_t* tile, int row, int quad) {
    const float scale = half_to_float(load<std::uint16_t>(tile + kScales + row * 2));
    return {load<Words2>(tile + (4 * row + quad) * 8), scale, -(32768.0f + 128.0f) * scale};
  }
  static DSMOE_ANYWHERE void step(const Lane& lane, int k16, int, std::uint32_t (&pairs)[2]) {
    float x[4];
    for (int i = 0; i < 4; ++i) x[i] = fmaf(above_32768(lane.codes.v[k16], i), lane.scale, lane.offset);
    pairs[0] = bf16_pair(x[0], x[1]), pairs[1] = bf16_pair(x[2], x[3]);
  }
};

template <>
struct Block<DType::kQ4_0> {
  static constexpr bool kTwoWays = false;
  static constexpr int kNumbers = 32, kBytes = 18;
  static constexpr int kScales = 128;
  struct Lane {
    std::uint32_t codes;
    float scale, offset;
  };
  static DSMOE_ANYWHERE void pack(const std::uint8_t* block, int row, int quad, std::uint8_t* tile) {
    const auto code = [&](int k) { return block[2 + k % 16] >> (k / 16 * 4) & 15; };
    save(tile + (4 * row + quad) * 4, pack_nibbles(0, quad, code));
    if (quad == 0) save(tile + kScales + row * 2, half_at(block));
  }
  static DSMOE_ANYWHERE Lane load_lane(const std::uint8_t* tile, int row, int quad) {
    const float scale = half_to_float(load<std::uint16_t>(tile + kScales + row * 2));
    return {load<std::uint32_t>(tile + (4 * row + quad) * 4), scale, -(128.0f + 8.0f) * scale};
  }
  static DSMOE_ANYWHERE void step(const Lane& lane, int k16, int, std::uint32_t (&pairs)[2]) {
    scaled(nibbles(lane.codes, k16), lane.scale, lane.offset, pairs);
  }
};

template <>
struct Block<DType::kQ5_0> {
  static constexpr bool kTwoWays = false;
  static constexpr int kNumbers = 32, kBytes = 22;
  static constexpr int kHigh = 128, kScales = 160;
  struct Lane {
    std::uint32_t codes, high;
    float scale, offset;
  };
  static DSMOE_ANYWHERE void pack(const std::uint8_t* block, int row, int quad, std::uint8_t* tile) {
    const auto code = [&](int k) {
      return (block[6 + k % 16] >> (k / 16 * 4) & 15) | (block[2 + k / 8] >> (k % 8) & 1) << 4;
    };
    save(tile + (4 * row + quad) * 4, pack_nibbles(0, quad, code));
    if (quad != 0) return;
    save(tile + kHigh + row * 4, pack_fifth_bits(0, code));
    save(tile + kScales + row * 2, half_at(block));
  }
  static DSMOE_ANYWHERE Lane load_lane(const std::uint8_t* tile, int row, int quad) {
    const float scale = half_to_float(load<std::uint16_t>(tile + kScales + row * 2));
    return {load<std::uint32_t>(tile + (4 * row + quad) * 4), load<std::uint32_t>(tile + kHigh + row * 4), scale,
            -(128.0f + 16.0f) * scale};
  }
  static DSMOE_ANYWHERE void step(const Lane& lane, int k16, int quad, std::uint32_t (&pairs)[2]) {
    scaled(nibbles(lane.codes, k16) | fifth_bits(lane.high, quad, k16), lane.scale, lane.offset, pairs);
  }
};

// The scales and minimums of a Q4_K or Q5_K block, which lie as in a file: two halves and 12 bytes (ops/quantize_k.h).
//
// A number is step * code - low, rounded once. Where the sum kAbove * step + low is an f32, the code may stay above kAbove,
// which saves one operation of four. Either term has 17 bits, so it is whenever the halves' exponents are such that the
// terms begin at most six bits apart, as they are but for blocks with next to no minimum.
template <int kAbove>  // 16 for codes of four bits, 32 for five
struct SixBitScales {
  std::uint32_t scale[2], minimum[2];  // a byte for each group of 32
  float step, low;
  bool near;

  static DSMOE_ANYWHERE SixBitScales load_row(const std::uint8_t* from) {
    const auto h = load<Words4>(from);
    SixBitScales s;
    s.scale[0] = h.v[1] & 0x3f3f3f3fu, s.minimum[0] = h.v[2] & 0x3f3f3f3fu;
    s.scale[1] = (h.v[3] & 0x0f0f0f0fu) | (h.v[1] >> 2 & 0x30303030u);
    s.minimum[1] = (h.v[3] >> 4 & 0x0f0f0f0fu) | (h.v[2] >> 2 & 0x30303030u);
    s.step = half_to_float(static_cast<std::uint16_t>(h.v[0]));
    s.low = half_to_float(static_cast<std::uint16_t>(h.v[0] >> 16));
    const auto exponent = [](std::uint32_t e) { return static_cast<int>(e > 1 ? e : 1); };  // of the last bit
    const int apart = exponent(h.v[0] >> 10 & 31) + (kAbove == 16 ? 4 : 5) - exponent(h.v[0] >> 26 & 31);
    s.near = apart >= -6 && apart <= 6;
    return s;
  }
  // `codes` are bytes, or with kNear what the bits of kAbove take.
  template <bool kNear>
  DSMOE_ANYWHERE void numbers(std::uint32_t codes, int group, std::uint32_t (&pairs)[2]) const {
    const float a = fmaf(above_128(scale[group / 4], group % 4), step, -128.0f * step);
    float b = fmaf(above_128(minimum[group / 4], group % 4), -low, 128.0f * low);
    if (kNear) b = fmaf(static_cast<float>(-kAbove), a, b);
    float x[4];
    for (int i = 0; i < 4; ++i)
      x[i] = fmaf(kNear ? below < kAbove == 16 ? 0x41 : 0x42 > (codes, i) : above_128(codes, i) - 128.0f, a, b);
    pairs[0] = bf16_pair(x[0], x[1]), pairs[1] = bf16_pair(x[2], x[3]);
  }
};

// Four bits of 256 numbers: 1024 bytes of a tile. A lane's words for groups 0-3 of 32 numbers are neighbours, and for 4-7.
struct Nibbles256 {
  Words4 v[2];

  static DSMOE_ANYWHERE Nibbles256 load_lane(const std::uint8_t* tile, int lane) {
    return {{load<Words4>(tile + lane * 16), load<Words4>(tile + 512 + lane * 16)}};
  }
  DSMOE_ANYWHERE std::uint32_t word(int k16) const { return v[k16 / 8].v[k16 / 2 % 4]; }
  DSMOE_ANYWHERE std::uint32_t of(int k16) const { return nibbles(word(k16), k16 % 2); }
  // The same times 2^kBy, up to 8.
  template <int kBy>
  DSMOE_ANYWHERE std::uint32_t shifted(int k16) const {
    return (k16 % 2 ? word(k16) >> (4 - kBy) : word(k16) << kBy) & (0x0f0f0f0fu << kBy);
  }
  template <class Code>
  static DSMOE_ANYWHERE void pack(int lane, std::uint8_t* tile, Code code) {
    for (int g = 0; g < 8; ++g) save(tile + g / 4 * 512 + lane * 16 + g % 4 * 4, pack_nibbles(g, lane % 4, code));
  }
};

template <>
struct Block<DType::kQ4_K> {
  static constexpr int kNumbers = 256, kBytes = 144;
  static constexpr int kScales = 1024;
  static constexpr bool kTwoWays = true;
  struct Lane {
    Nibbles256 codes;
    SixBitScales<16> scales;
    DSMOE_ANYWHERE bool near() const { return scales.near; }
  };
  static DSMOE_ANYWHERE void pack(const std::uint8_t* block, int row, int quad, std::uint8_t* tile) {
    Nibbles256::pack(4 * row + quad, tile,
                     [&](int k) { return block[16 + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15; });
    if (quad == 0)
      for (int i = 0; i < 16; ++i) tile[kScales + row * 16 + i] = block[i];
  }
  static DSMOE_ANYWHERE Lane load_lane(const std::uint8_t* tile, int row, int quad) {
    return {Nibbles256::load_lane(tile, 4 * row + quad), SixBitScales<16>::load_row(tile + kScales + row * 16)};
  }
  template <bool kNear = false>
  static DSMOE_ANYWHERE void step(const Lane& lane, int k16, int, std::uint32_t (&pairs)[2]) {
    const std::uint32_t codes = kNear ? lane.codes.shifted<3>(k16) | 0x80808080u : lane.codes.of(k16);
    lane.scales.numbers<kNear>(codes, k16 / 2, pairs);
  }
};

template <>
struct Block<DType::kQ5_K> {
  static constexpr int kNumbers = 256, kBytes = 176;
  static constexpr int kHigh = 1024, kScales = 1280;
  static constexpr bool kTwoWays = true;
  struct Lane {
    Nibbles256 codes;
    Words4 high[2];
    SixBitScales<32> scales;
    DSMOE_ANYWHERE bool near() const { return scales.near; }
  };
  static DSMOE_ANYWHERE void pack(const std::uint8_t* block, int row, int quad, std::uint8_t* tile) {
    const auto code = [&](int k) {
      return (block[48 + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15) | (block[16 + k % 32] >> (k / 32) & 1) << 4;
    };
    Nibbles256::pack(4 * row + quad, tile, code);
    if (quad != 0) return;
    for (int g = 0; g < 8; ++g) save(tile + kHigh + row * 32 + g * 4, pack_fifth_bits(g, code));
    for (int i = 0; i < 16; ++i) tile[kScales + row * 16 + i] = block[i];
  }
  static DSMOE_ANYWHERE Lane load_lane(const std::uint8_t* tile, int row, int quad) {
    const std::uint8_t* const high = tile + kHigh + row * 32;
    return {Nibbles256::load_lane(tile, 4 * row + quad),
            {load<Words4>(high), load<Words4>(high + 16)},
            SixBitScales<32>::load_row(tile + kScales + row * 16)};
  }
  template <bool kNear = false>
  static DSMOE_ANYWHERE void step(const Lane& lane, int k16, int quad, std::uint32_t (&pairs)[2]) {
    const std::uint32_t high = lane.high[k16 / 8].v[k16 / 2 % 4];
    const std::uint32_t codes = kNear ? lane.codes.shifted<2>(k16) | fifth_bits<6>(high, quad, k16 % 2)
                                      : lane.codes.of(k16) | fifth_bits(high, quad, k16 % 2);
    lane.scales.numbers<kNear>(codes, k16 / 2, pairs);
  }
};

template <>
struct Block<DType::kQ6_K> {
  static constexpr bool kTwoWays = false;
  static constexpr int kNumbers = 256, kBytes = 210;
  static constexpr int kHigh = 1024, kScales = 1536, kScale = 1664;
  struct Lane {
    Nibbles256 codes;
    Words4 high;    // bits 4 and 5: of step k16, bits 2 (k16 % 4) and the next of every byte of word k16 / 4
    Words4 scales;  // 128 + the scale of 16 numbers
    float scale;
  };
  static DSMOE_ANYWHERE void pack(const std::uint8_t* block, int row, int quad, std::uint8_t* tile) {
    const auto code = [&](int k) {
      const int base = k / 128, part = k % 128 / 32, l = k % 32;
      return (block[64 * base + part % 2 * 32 + l] >> (part / 2 * 4) & 15) | (block[128 + 32 * base + l] >> (2 * part) & 3)
                                                                                 << 4;
    };
    Nibbles256::pack(4 * row + quad, tile, code);
    for (int w = 0; w < 4; ++w) {
      std::uint32_t word = 0;
      for (int i = 0; i < 16; ++i)
        word |= static_cast<std::uint32_t>(code(place(4 * w + i / 4, quad, i % 4)) >> 4) << (i % 4 * 8 + i / 4 * 2);
      save(tile + kHigh + (4 * row + quad) * 16 + w * 4, word);
    }
    if (quad != 0) return;
    for (int i = 0; i < 16; ++i) tile[kScales + row * 16 + i] = static_cast<std::uint8_t>(block[192 + i] ^ 0x80);
    save(tile + kScale + row * 2, half_at(block + 208));
  }
  static DSMOE_ANYWHERE Lane load_lane(const std::uint8_t* tile, int row, int quad) {
    return {Nibbles256::load_lane(tile, 4 * row + quad), load<Words4>(tile + kHigh + (4 * row + quad) * 16),
            load<Words4>(tile + kScales + row * 16), half_to_float(load<std::uint16_t>(tile + kScale + row * 2))};
  }
  static DSMOE_ANYWHERE void step(const Lane& lane, int k16, int, std::uint32_t (&pairs)[2]) {
    const int f = k16 % 4;
    const std::uint32_t word = lane.high.v[k16 / 4], high = f < 2 ? word << (4 - 2 * f) : word >> (2 * f - 4);
    const float scale = fmaf(above_32768(lane.scales.v[k16 / 4], f), lane.scale, -(32768.0f + 128.0f) * lane.scale);
    scaled(lane.codes.of(k16) | (high & 0x30303030u), scale, -(128.0f + 32.0f) * scale, pairs);
  }
};

template <DType kType>
inline constexpr int kTileBytes = kTileRows* Block<kType>::kBytes;

// Bytes from one row of x in shared memory to the next: an odd multiple of 64, of which columns, a multiple of 32, are one.
DSMOE_ANYWHERE int row_pitch(int columns) { return columns * 2 / 128 * 128 + 64; }

// fn.template operator()<dtype>() for a quantized dtype; nothing for others.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <class Fn>
DSMOE_ANYWHERE void with_block(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kQ8_0: return fn.template operator()<DType::kQ8_0>();
    case DType::kQ4_0: return fn.template operator()<DType::kQ4_0>();
    case DType::kQ5_0: return fn.template operator()<DType::kQ5_0>();
    case DType::kQ4_K: return fn.template operator()<DType::kQ4_K>();
    case DType::kQ5_K: return fn.template operator()<DType::kQ5_K>();
    case DType::kQ6_K: return fn.template operator()<DType::kQ6_K>();
    default: return;
  }
}

}  // namespace dsmoe::cuda::packed
