// How tokens are distributed over the experts. Statistics of several batches add up.
#pragma once

#include <cstdint>
#include <vector>

#include "dsmoe/moe.h"

namespace dsmoe {

class RoutingStatistics {
 public:
  explicit RoutingStatistics(Index routed_experts);
  void add(const Routing& routing);

  Index routed_experts() const { return experts_; }
  std::int64_t tokens() const { return tokens_; }

  const std::vector<std::int64_t>& load() const { return load_; }  // [E] tokens that chose the expert
  std::vector<double> mean_weight() const;                         // [E] over those tokens; 0 where there are none
  double entropy() const;             // of the load, in nats: ln E when even, 0 when one expert takes everything
  double imbalance() const;           // largest load over mean load; 1 when even, 0 without tokens
  std::vector<Index> unused() const;  // experts that no token chose
  // [E][E] tokens that chose both; the diagonal is the load. The row of an expert that no token chose is empty.
  const std::vector<std::vector<std::int64_t>>& coactivation() const { return together_; }

 private:
  Index experts_;
  std::int64_t tokens_ = 0;
  std::vector<std::int64_t> load_;
  std::vector<std::vector<std::int64_t>> together_;
  std::vector<double> weight_sum_;
};

}  // namespace dsmoe
