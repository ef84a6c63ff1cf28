#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "dsmoe/moe_statistics.h"

namespace dsmoe {

RoutingStatistics::RoutingStatistics(Index routed_experts)
    : experts_(routed_experts),
      load_(static_cast<std::size_t>(routed_experts)),
      together_(static_cast<std::size_t>(routed_experts)),
      weight_sum_(static_cast<std::size_t>(routed_experts)) {}

void RoutingStatistics::add(const Routing& routing) {
  const Index tokens = routing.experts.dim(0), k = routing.experts.dim(1);
  const std::int32_t* expert = routing.experts.data<std::int32_t>();
  const float* weight = routing.weights.data<float>();
  for (Index i = 0; i < tokens * k; ++i)
    require(expert[i] >= 0 && expert[i] < experts_, "expert {} is not one of {}", expert[i], experts_);
  for (Index t = 0; t < tokens; ++t) {
    for (Index a = 0; a < k; ++a) {
      const Index e = expert[t * k + a];
      load_[static_cast<std::size_t>(e)]++;
      weight_sum_[static_cast<std::size_t>(e)] += weight[t * k + a];
      std::vector<std::int64_t>& row = together_[static_cast<std::size_t>(e)];
      row.resize(static_cast<std::size_t>(experts_));
      for (Index b = 0; b < k; ++b) row[static_cast<std::size_t>(expert[t * k + b])]++;
    }
  }
  tokens_ += tokens;
}

std::vector<double> RoutingStatistics::mean_weight() const {
  std::vector<double> mean(load_.size());
  for (std::size_t e = 0; e < mean.size(); ++e) mean[e] = load_[e] > 0 ? weight_sum_[e] / static_cast<double>(load_[e]) : 0;
  return mean;
}

double RoutingStatistics::entropy() const {
  double total = 0, sum = 0;
  for (const std::int64_t n : load_) total += static_cast<double>(n);
  for (const std::int64_t n : load_)
    if (n > 0) sum -= static_cast<double>(n) / total * std::log(static_cast<double>(n) / total);
  return sum;
}

double RoutingStatistics::imbalance() const {
  double total = 0;
  for (const std::int64_t n : load_) total += static_cast<double>(n);
  if (total == 0) return 0;
  return static_cast<double>(*std::max_element(load_.begin(), load_.end())) * static_cast<double>(experts_) / total;
}

std::vector<Index> RoutingStatistics::unused() const {
  std::vector<Index> none;
  for (std::size_t e = 0; e < load_.size(); ++e)
    if (load_[e] == 0) none.push_back(static_cast<Index>(e));
  return none;
}

}  // namespace dsmoe
