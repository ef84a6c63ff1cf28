// FNV-1a with 128 bits, by words: tells inputs apart, and is no defence against someone who wants two to look alike.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace dsmoe::train {

class Hash {
 public:
  void add(std::uint64_t word) { state_ = (state_ ^ word) * kPrime; }
  // With their number, so that "ab", "c" differs from "a", "bc".
  void add(std::span<const std::byte> bytes) {
    add(bytes.size());
    for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data(), 8);
      add(word);
    }
    for (const std::byte b : bytes) add(static_cast<std::uint64_t>(b));
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }

  std::string hex() const {
    return fmt::format("{:016x}{:016x}", static_cast<std::uint64_t>(state_ >> 64), static_cast<std::uint64_t>(state_));
  }
  static std::string of(std::string_view text) {
    Hash hash;
    hash.add(text);
    return hash.hex();
  }

 private:
  static constexpr __uint128_t kPrime = (static_cast<__uint128_t>(1) << 88) + 0x13B;
  __uint128_t state_ = (static_cast<__uint128_t>(0x6C62272E07BB0142ull) << 64) + 0x62B821756295C58Dull;
};

}  // namespace dsmoe::train
