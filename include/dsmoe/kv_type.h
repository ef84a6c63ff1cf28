// What a KV cache is kept in. Attention computes with it as f32, or as bf16 where the model itself is bf16.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "dsmoe/options.h"

namespace dsmoe {

enum class KvType : std::uint8_t { kF32, kBF16, kQ8_0 };

template <>
struct OptionNames<KvType> {
  static constexpr std::array values = {std::pair{KvType::kF32, "f32"}, std::pair{KvType::kBF16, "bf16"},
                                        std::pair{KvType::kQ8_0, "q8_0"}};
};

inline constexpr OptionInfo kKvTypeOption = {
    "kv-type", "Type of the KV cache (auto: f32 for f32 and f16 weights, bf16 for bf16 and quantized ones)"};

constexpr DType dtype_of(KvType type) {
  return type == KvType::kF32 ? DType::kF32 : type == KvType::kBF16 ? DType::kBF16 : DType::kQ8_0;
}

}  // namespace dsmoe
