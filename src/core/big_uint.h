// An unsigned integer of any size, with just what counting needs: times and divided by a machine word, in decimal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace dsmoe {

class BigUint {
 public:
  explicit BigUint(std::uint64_t value = 0) : words_{value} {}

  BigUint& operator*=(std::uint64_t factor) {
    std::uint64_t carry = 0;
    for (std::uint64_t& word : words_) {
      const auto product = static_cast<__uint128_t>(word) * factor + carry;  // at most (2^64-1) * 2^64
      word = static_cast<std::uint64_t>(product);
      carry = static_cast<std::uint64_t>(product >> 64);
    }
    if (carry != 0) words_.push_back(carry);
    trim();
    return *this;
  }

  // Divides by a divisor that is not 0 and returns the remainder.
  std::uint64_t divide(std::uint64_t divisor) {
    std::uint64_t remainder = 0;
    for (auto word = words_.rbegin(); word != words_.rend(); ++word) {
      const auto dividend = (static_cast<__uint128_t>(remainder) << 64) | *word;
      *word = static_cast<std::uint64_t>(dividend / divisor);
      remainder = static_cast<std::uint64_t>(dividend % divisor);
    }
    trim();
    return remainder;
  }

  bool is_zero() const { return words_.size() == 1 && words_[0] == 0; }

  std::string str() const {
    constexpr std::uint64_t kChunk = 10'000'000'000'000'000'000u;  // 10^19, the largest power of ten in a word
    constexpr int kDigits = 19;
    std::string digits;  // lowest first
    for (BigUint rest = *this; !rest.is_zero();) {
      std::uint64_t chunk = rest.divide(kChunk);
      for (int i = 0; i < kDigits && (chunk != 0 || !rest.is_zero()); ++i, chunk /= 10)
        digits += static_cast<char>('0' + chunk % 10);
    }
    if (digits.empty()) return "0";
    std::reverse(digits.begin(), digits.end());
    return digits;
  }

 private:
  void trim() {
    while (words_.size() > 1 && words_.back() == 0) words_.pop_back();
  }

  std::vector<std::uint64_t> words_;  // lowest first, at least one, no leading zeros
};

}  // namespace dsmoe
