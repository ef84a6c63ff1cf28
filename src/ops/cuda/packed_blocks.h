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

#include <cstdint>

#include "ops/cuda/packed_numbers.h"

namespace dsmoe::cuda::packed {

inline constexpr int kTileRows = 8;

// Each Block has: kNumbers and kBytes of one row's GGUF block; pack(), which writes what one lane has of a tile; Raw, what
// a lane loads of it; Lane, what it makes of that; and step(), two pairs of bf16: a lane's part of 16 numbers. Those with
// kTwoWays also have step<true>(), which takes fewer operations, for lanes that are near(): the same numbers.
template <DType>
struct Block;

template <>
struct Block<DType::kQ8_0> {
  static constexpr bool kTwoWays = false;
  static constexpr int kNumbers = 32, kBytes = 34;
  static constexpr int kScales = 256;  // f16, behind the codes
  struct Raw {
    Words2 codes;
    std::uint16_t scale;
  };
  struct Lane {
    Words2 codes;
    float scale, offset;
  };
  static DSMOE_ANYWHERE void pack(const std::uint8_t* block, int row, int quad, std::uint8_t* tile) {
    for (int i = 0; i < 8; ++i)
      tile[(4 * row + quad) * 8 + i] = static_cast<std::uint8_t>(block[2 + place(i / 4, quad, i % 4)] ^ 0x80);
    if (quad == 0) save(tile + kScales + row * 2, half_at(block));
  }
  static DSMOE_ANYWHERE Raw load_raw(const std::uint8_t* tile, int row, int quad) {
    return {load_tile<Words2>(tile + (4 * row + quad) * 8), load_tile<std::uint16_t>(tile + kScales + row * 2)};
  }
  static DSMOE_ANYWHERE Lane lane(const Raw& raw) {
    const float scale = half_to_float(raw.scale);
    return {raw.codes, scale, -(32768.0f + 128.0f) * scale};
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
  struct Raw {
    std::uint32_t codes;
    std::uint16_t scale;
  };
  struct Lane {
    std::uint32_t codes;
    float scale, offset;
  };
  static DSMOE_ANYWHERE void pack(const std::uint8_t* block, int row, int quad, std::uint8_t* tile) {
    const auto code = [&](int k) { return block[2 + k % 16] >> (k / 16 * 4) & 15; };
    save(tile + (4 * row + quad) * 4, pack_nibbles(0, quad, code));
    if (quad == 0) save(tile + kScales + row * 2, half_at(block));
  }
  static DSMOE_ANYWHERE Raw load_raw(const std::uint8_t* tile, int row, int quad) {
    return {load_tile<std::uint32_t>(tile + (4 * row + quad) * 4), load_tile<std::uint16_t>(tile + kScales + row * 2)};
  }
  static DSMOE_ANYWHERE Lane lane(const Raw& raw) {
    const float scale = half_to_float(raw.scale);
    return {raw.codes, scale, -(128.0f + 8.0f) * scale};
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
  struct Raw {
    std::uint32_t codes, high;
    std::uint16_t scale;
  };
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
  static DSMOE_ANYWHERE Raw load_raw(const std::uint8_t* tile, int row, int quad) {
    return {load_tile<std::uint32_t>(tile + (4 * row + quad) * 4), load_tile<std::uint32_t>(tile + kHigh + row * 4),
            load_tile<std::uint16_t>(tile + kScales + row * 2)};
  }
  static DSMOE_ANYWHERE Lane lane(const Raw& raw) {
    const float scale = half_to_float(raw.scale);
    return {raw.codes, raw.high, scale, -(128.0f + 16.0f) * scale};
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

  static DSMOE_ANYWHERE SixBitScales of(const Words4& h) {
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
    return {{load_tile<Words4>(tile + lane * 16), load_tile<Words4>(tile + 512 + lane * 16)}};
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
  struct Raw {
    Nibbles256 codes;
    Words4 scales;
  };
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
  static DSMOE_ANYWHERE Raw load_raw(const std::uint8_t* tile, int row, int quad) {
    return {Nibbles256::load_lane(tile, 4 * row + quad), load_tile<Words4>(tile + kScales + row * 16)};
  }
  static DSMOE_ANYWHERE Lane lane(const Raw& raw) { return {raw.codes, SixBitScales<16>::of(raw.scales)}; }
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
  struct Raw {
    Nibbles256 codes;
    Words4 high[2], scales;
  };
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
  static DSMOE_ANYWHERE Raw load_raw(const std::uint8_t* tile, int row, int quad) {
    const std::uint8_t* const high = tile + kHigh + row * 32;
    return {Nibbles256::load_lane(tile, 4 * row + quad),
            {load_tile<Words4>(high), load_tile<Words4>(high + 16)},
            load_tile<Words4>(tile + kScales + row * 16)};
  }
  static DSMOE_ANYWHERE Lane lane(const Raw& raw) {
    return {raw.codes, {raw.high[0], raw.high[1]}, SixBitScales<32>::of(raw.scales)};
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
  struct Raw {
    Nibbles256 codes;
    Words4 high, scales;
    std::uint16_t scale;
  };
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
  static DSMOE_ANYWHERE Raw load_raw(const std::uint8_t* tile, int row, int quad) {
    return {Nibbles256::load_lane(tile, 4 * row + quad), load_tile<Words4>(tile + kHigh + (4 * row + quad) * 16),
            load_tile<Words4>(tile + kScales + row * 16), load_tile<std::uint16_t>(tile + kScale + row * 2)};
  }
  static DSMOE_ANYWHERE Lane lane(const Raw& raw) { return {raw.codes, raw.high, raw.scales, half_to_float(raw.scale)}; }
  static DSMOE_ANYWHERE void step(const Lane& lane, int k16, int, std::uint32_t (&pairs)[2]) {
    const int f = k16 % 4;
    const std::uint32_t word = lane.high.v[k16 / 4], high = f < 2 ? word << (4 - 2 * f) : word >> (2 * f - 4);
    const float scale = fmaf(above_32768(lane.scales.v[k16 / 4], f), lane.scale, -(32768.0f + 128.0f) * lane.scale);
    scaled(lane.codes.of(k16) | (high & 0x30303030u), scale, -(128.0f + 32.0f) * scale, pairs);
  }
};

template <DType kType>
inline constexpr int kTileBytes = kTileRows* Block<kType>::kBytes;

// What a lane makes of a tile in memory.
template <DType kType>
DSMOE_ANYWHERE typename Block<kType>::Lane load_lane(const std::uint8_t* tile, int row, int quad) {
  return Block<kType>::lane(Block<kType>::load_raw(tile, row, quad));
}

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
