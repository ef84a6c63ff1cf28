// No sort: the token at which a sum exceeds its target is found by halving.
#include "ops/sample.h"

#include <algorithm>

namespace dsmoe::ops::cpu {

namespace {

using Codes = std::span<std::uint64_t>;

std::uint64_t sum_of(Codes codes, const Weigher& weigh) {
  std::uint64_t sum = 0;
  for (const std::uint64_t code : codes) sum += weigh(code);
  return sum;
}

// The first code, in order, at which the sum of the weights exceeds the target.
std::uint64_t find(Codes codes, const Weigher& weigh, std::uint64_t target) {
  while (codes.size() > 1) {
    const std::size_t half = codes.size() / 2;
    std::nth_element(codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(half), codes.end());
    const std::uint64_t sum = sum_of(codes.first(half), weigh);
    if (target < sum) {
      codes = codes.first(half);
    } else {
      codes = codes.subspan(half);
      target -= sum;
    }
  }
  return codes[0];
}

// The first k of the order, in any order.
Codes best_of(Codes codes, std::size_t k) {
  if (k >= codes.size()) return codes;
  const auto end = codes.begin() + static_cast<std::ptrdiff_t>(k);
  // A few of many: a heap of them that hardly ever changes is faster than partitions.
  if (k < codes.size() / 64)
    std::partial_sort(codes.begin(), end, codes.end());
  else
    std::nth_element(codes.begin(), end, codes.end());
  return codes.first(k);
}

}  // namespace

std::int32_t sample(const SampleTask& task, Codes codes) {
  const SampleRow& row = task.row;
  const std::span<const float> logits = task.logits;
  const auto best = static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const float largest = logits[best];
  if (row.scale == 0 || largest == -std::numeric_limits<float>::infinity()) return static_cast<std::int32_t>(best);

  for (std::size_t i = 0; i < logits.size(); ++i) codes[i] = code_of(logits[i], static_cast<std::uint32_t>(i));
  if (row.top_k > 0) codes = best_of(codes, static_cast<std::size_t>(row.top_k));
  Weigher weigh{Weighing::kMass, largest, row.scale, row.least_mass, ~std::uint64_t{0}};
  if (row.top_p < 1) weigh.last = find(codes, weigh, target_of(row, Weighing::kMass, sum_of(codes, weigh)));
  weigh.weighing = Weighing::kDraw;
  return id_of(find(codes, weigh, target_of(row, Weighing::kDraw, sum_of(codes, weigh))));
}

}  // namespace dsmoe::ops::cpu
