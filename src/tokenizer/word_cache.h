// Remembers the ids of short pieces. What happens to a piece from some stage on depends on the piece alone, so a
// word that was seen before costs one look-up instead of the stages and merges behind it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace dsmoe {

class WordCache {
 public:
  static constexpr std::size_t kMaxBytes = 32;
  static constexpr std::size_t kMaxIds = 7;

  struct alignas(64) Slot {
    std::array<char, kMaxBytes> text{};  // padded with zeros
    std::array<std::int32_t, kMaxIds> ids{};
    std::uint8_t size = 0;  // of the text; 0 for an empty slot
    std::uint8_t stage = 0;
    std::uint8_t count = 0;
  };
  static_assert(sizeof(Slot) == 64);

  WordCache() : slots_(kSlots) {}

  // The slot for a piece of 1 to kMaxBytes bytes, and whether it holds that piece.
  struct Lookup {
    Slot* slot;
    bool hit;
  };
  Lookup find(std::string_view text, std::uint8_t stage) {
    std::array<char, kMaxBytes> key{};
    std::memcpy(key.data(), text.data(), text.size());
    std::array<std::uint64_t, kMaxBytes / 8> words;
    std::memcpy(words.data(), key.data(), kMaxBytes);
    std::uint64_t h = text.size() << 8 | stage;
    for (const std::uint64_t word : words) h = mix(h ^ word);
    Slot& slot = slots_[h >> (64 - kBits)];
    return {&slot, slot.size == text.size() && slot.stage == stage && slot.text == key};
  }

  // Whatever was in the slot gives way.
  static void store(Slot& slot, std::string_view text, std::uint8_t stage, std::span<const std::int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    slot.text.fill(0);
    std::memcpy(slot.text.data(), text.data(), text.size());
    std::copy(ids.begin(), ids.end(), slot.ids.begin());
    slot.size = static_cast<std::uint8_t>(text.size());
    slot.stage = stage;
    slot.count = static_cast<std::uint8_t>(ids.size());
  }

 private:
  static constexpr int kBits = 15;  // 2 MiB
  static constexpr std::size_t kSlots = std::size_t{1} << kBits;

  static std::uint64_t mix(std::uint64_t x) {
    const auto product = static_cast<__uint128_t>(x ^ 0x2D358DCCAA6C78A5ull) * 0x9E3779B97F4A7C15ull;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  std::vector<Slot> slots_;
};

}  // namespace dsmoe
