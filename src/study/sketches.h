// Counting in bounded memory: exact while there is little, with a known error afterwards.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace dsmoe::study {

// A mixing of 64 bits in which every bit of the input changes half of those of the output (splitmix64, Steele et al. 2014).
inline std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The frequent values of a stream (Misra and Gries 1982, removing half of the entries at a time). At most `capacity`
// entries; a count is at most error() too low, and error() is at most twice the length of the stream over `capacity`.
class FrequentItems {
 public:
  explicit FrequentItems(std::size_t capacity) : capacity_(capacity) {}

  void add(std::int32_t value);
  const std::unordered_map<std::int32_t, std::uint64_t>& counts() const { return counts_; }
  std::uint64_t error() const { return error_; }

 private:
  std::size_t capacity_;
  std::uint64_t error_ = 0;
  std::unordered_map<std::int32_t, std::uint64_t> counts_;
};

// How many different 64-bit hashes there were: exact up to kExact, then by HyperLogLog (Flajolet et al. 2007) with a
// standard error of 0.8%.
class DistinctCounter {
 public:
  static constexpr std::size_t kExact = 65536;

  void add(std::uint64_t hash);
  bool exact() const { return registers_.empty(); }
  double count() const;

 private:
  bool insert(std::uint64_t hash);  // false when it was there
  void grow();
  void add_to_registers(std::uint64_t hash);

  std::vector<std::uint64_t> table_;  // open addressing, 0 for empty, at most half full
  std::size_t size_ = 0;
  std::vector<std::uint8_t> registers_;
};

}  // namespace dsmoe::study
