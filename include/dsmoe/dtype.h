// Element types. Sums are always taken in f32 or wider, whatever the storage.
//
// The types from kQ8_0 on are GGUF's: a row is cut into blocks of 32 or 256 numbers that share scales, so a row's length
// must be a multiple of the block's, and a single number has no address.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace dsmoe {

// Numbers that are drawn for a dtype depend on its value, so values stay. kF64 is for sums that stay tensors, such as
// losses; weights and activations are never f64. The types that end with R are in memory alone: the blocks of 32
// neighbouring rows of a matrix, repacked for the CPU's products in as many bytes.
enum class DType : std::uint8_t {
  kF32,
  kBF16,
  kF16,
  kI32,
  kI64,
  kU8,
  kQ8_0,
  kQ4_0,
  kQ5_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF64,
  kQ8_0R,
  kQ4_0R,
  kQ5_0R,
  kQ4_KR,
  kQ5_KR,
  kQ6_KR
};

// What is stored as one piece: `bytes` for `numbers` neighbours of a row. One number for the plain types.
struct StorageBlock {
  std::int64_t numbers;
  std::size_t bytes;
};
StorageBlock block_of(DType dtype);
inline bool is_repacked(DType dtype) { return dtype >= DType::kQ8_0R && dtype <= DType::kQ6_KR; }
inline bool is_quantized(DType dtype) { return (dtype >= DType::kQ8_0 && dtype <= DType::kQ6_K) || is_repacked(dtype); }
// The type that a file has of it: the same but for repacked ones; and the other way, for quantized ones.
inline DType file_type(DType dtype) {
  constexpr int kApart = static_cast<int>(DType::kQ8_0R) - static_cast<int>(DType::kQ8_0);
  return is_repacked(dtype) ? static_cast<DType>(static_cast<int>(dtype) - kApart) : dtype;
}
inline DType repacked_type(DType dtype) {
  constexpr int kApart = static_cast<int>(DType::kQ8_0R) - static_cast<int>(DType::kQ8_0);
  return is_repacked(dtype) ? dtype : static_cast<DType>(static_cast<int>(dtype) + kApart);
}

std::size_t size_of(DType dtype);                    // of one number; quantized types have none and throw
std::size_t row_bytes(DType dtype, std::int64_t n);  // of n neighbours; throws when n is no multiple of the block
const char* to_string(DType dtype);                  // "f32", "bf16", ...; of a repacked type its file_type()'s

// The upper half of an f32. Rounded to nearest, ties to even; NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  friend bool operator==(BFloat16, BFloat16) = default;
};

// IEEE half precision. Rounded to nearest, ties to even; NaN stays NaN, too large becomes infinite.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = u & 0x7fffffffu;
    std::uint32_t half;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {  // 65520 and more
      half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // subnormal: beside 1/2 a float's last bit is 2^-24, as in a subnormal half
      half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    } else {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    bits = static_cast<std::uint16_t>((u >> 16 & 0x8000u) | half);
  }
  static Float16 from_bits(std::uint16_t bits) {
    Float16 half;
    half.bits = bits;
    return half;
  }
  explicit operator float() const {
    // The scaling by 2^112 moves the exponent from bias 15 to bias 127, and normalises subnormal numbers.
    const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
    const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const bool finite = (bits & 0x7c00u) != 0x7c00u;
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    return std::bit_cast<float>(sign | (finite ? scaled : magnitude | 0x7f800000u));
  }
  friend bool operator==(Float16, Float16) = default;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};

}  // namespace dsmoe
