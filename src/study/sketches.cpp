#include "study/sketches.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace dsmoe::study {

void FrequentItems::add(std::int32_t value) {
  counts_[value]++;
  if (counts_.size() <= capacity_) return;
  std::vector<std::uint64_t> all;
  for (const auto& entry : counts_) all.push_back(entry.second);
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  const std::uint64_t cut = *middle;
  std::erase_if(counts_, [cut](auto& entry) { return entry.second <= cut; });
  for (auto& entry : counts_) entry.second -= cut;
  error_ += cut;
}

namespace {
constexpr int kRegisterBits = 14;
constexpr std::size_t kRegisters = std::size_t{1} << kRegisterBits;
}  // namespace

bool DistinctCounter::insert(std::uint64_t hash) {
  const std::size_t mask = table_.size() - 1;
  std::size_t i = hash & mask;
  while (table_[i] != 0 && table_[i] != hash) i = (i + 1) & mask;
  if (table_[i] == hash) return false;
  table_[i] = hash;
  ++size_;
  return true;
}

void DistinctCounter::grow() {
  std::vector<std::uint64_t> old(std::max<std::size_t>(64, 2 * table_.size()));
  old.swap(table_);
  size_ = 0;
  for (const std::uint64_t hash : old)
    if (hash != 0) insert(hash);
}

void DistinctCounter::add_to_registers(std::uint64_t hash) {
  const std::uint64_t rest = (hash << kRegisterBits) | (std::uint64_t{1} << (kRegisterBits - 1));
  std::uint8_t& r = registers_[hash >> (64 - kRegisterBits)];
  r = std::max(r, static_cast<std::uint8_t>(std::countl_zero(rest) + 1));
}

void DistinctCounter::add(std::uint64_t hash) {
  hash = std::max<std::uint64_t>(hash, 1);
  if (!exact()) return add_to_registers(hash);
  if (2 * (size_ + 1) > table_.size()) grow();
  if (!insert(hash) || size_ <= kExact) return;
  registers_.assign(kRegisters, 0);
  for (const std::uint64_t seen : table_)
    if (seen != 0) add_to_registers(seen);
  table_ = {};
}

double DistinctCounter::count() const {
  if (exact()) return static_cast<double>(size_);
  double sum = 0;
  for (const std::uint8_t r : registers_) sum += std::ldexp(1.0, -r);
  constexpr auto kCount = static_cast<double>(kRegisters);
  return 0.7213 / (1 + 1.079 / kCount) * kCount * kCount / sum;
}

}  // namespace dsmoe::study
