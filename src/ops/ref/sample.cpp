#include "ops/sample.h"

#include <algorithm>
#include <vector>

namespace dsmoe::ops::ref {

std::int32_t sample(const SampleTask& task) {
  const SampleRow& row = task.row;
  std::vector<std::uint64_t> codes;
  for (std::size_t i = 0; i < task.logits.size(); ++i)
    codes.push_back(code_of(task.logits[i], static_cast<std::uint32_t>(i)));
  std::sort(codes.begin(), codes.end());
  const float largest = logit_of(codes[0]);
  if (row.scale == 0 || largest == -std::numeric_limits<float>::infinity()) return id_of(codes[0]);

  std::uint64_t last = codes.back();
  const auto choose = [&](Weighing weighing) {
    const Weigher weigh{weighing, largest, row.scale, row.least_mass, last};
    std::uint64_t total = 0, sum = 0;
    for (const std::uint64_t code : codes) total += weigh(code);
    const std::uint64_t target = target_of(row, weighing, total);
    for (const std::uint64_t code : codes)
      if ((sum += weigh(code)) > target) return code;
    return codes.back();
  };
  if (row.top_k > 0) last = choose(Weighing::kCount);
  if (row.top_p < 1) last = choose(Weighing::kMass);
  return id_of(choose(Weighing::kDraw));
}

}  // namespace dsmoe::ops::ref
