#include "train/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/fail.h"
#include "core/random.h"
#include "model/families/family.h"

namespace dsmoe::train {

namespace {

constexpr double kAssumed = 2;  // times its even share
constexpr int kDraws = 256;

double number(Index n) { return static_cast<double>(n); }

// A token chooses an expert once.
double most_of_an_expert(const MoeConfig& moe) { return number(moe.routed_experts) / number(moe.experts_per_token); }

std::vector<MoeConfig> moe_layers(const ModelConfig& config) {
  std::vector<MoeConfig> all;
  for (const LayerSpec& layer : spec_of(config).layers)
    if (const auto* const moe = std::get_if<MoeConfig>(&layer.feed_forward)) all.push_back(*moe);
  return all;
}

// Which experts a rank has is as in Mesh.
template <class T>
T load_of_rank(const std::vector<T>& load, Index rank, Index ranks) {
  const auto e = static_cast<Index>(load.size());
  return std::accumulate(load.begin() + e * rank / ranks, load.begin() + e * (rank + 1) / ranks, T{});
}

// Where a share `below` of normal numbers is below.
double normal_quantile(double below) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < below ? low : high) = middle;
  }
  return low;
}

// n loads around 1, lognormal, of which the largest is this.
std::vector<double> lognormal_shares(Index n, double largest) {
  std::vector<double> normal(static_cast<std::size_t>(n)), shares(normal.size());
  for (std::size_t i = 0; i < normal.size(); ++i)  // where the i-th smallest is expected (Blom)
    normal[i] = normal_quantile((number(static_cast<Index>(i)) + 0.625) / (number(n) + 0.25));
  double low = 0, high = 50;  // of the logarithms' deviation
  for (int step = 0; step < 60; ++step) {
    const double deviation = (low + high) / 2;
    // Of the largest one, which is then 1.
    for (std::size_t i = 0; i < normal.size(); ++i) shares[i] = std::exp(deviation * (normal[i] - normal.back()));
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& s : shares) s *= number(n) / sum;
    (shares.back() < largest ? low : high) = deviation;
  }
  return shares;
}

}  // namespace

void ExpertLoads::check(const ModelConfig& config) const {
  const std::vector<MoeConfig> layers = moe_layers(config);
  if (busiest_expert != 0)
    for (const MoeConfig& moe : layers)
      require(busiest_expert >= 1 && busiest_expert <= most_of_an_expert(moe),
              "expert-load-max is {}; the busiest of {} experts, of which a token takes {}, has 1 to {:.4g} times its even "
              "share",
              busiest_expert, moe.routed_experts, moe.experts_per_token, most_of_an_expert(moe));
  if (counted.empty()) return;
  require(counted.size() == layers.size(), "the loads are of {} layers, but the model has {} MoE layers", counted.size(),
          layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    require(static_cast<Index>(counted[l].size()) == layers[l].routed_experts,
            "the loads are of {} experts in a layer, but the model has {}", counted[l].size(), layers[l].routed_experts);
    std::int64_t sum = 0;
    for (const std::int64_t n : counted[l]) {
      require(n >= 0 && n <= std::numeric_limits<std::int64_t>::max() - sum, "a load of an expert is {}", n);
      sum += n;
    }
    require(sum > 0, "the loads of a layer are all 0; count some tokens");
  }
}

double busiest_rank(const MoeConfig& moe, Index ranks, double tokens, double busiest_expert) {
  if (ranks == 1) return 1;
  const double e = number(moe.routed_experts), k = number(moe.experts_per_token), p = number(ranks);
  std::vector<double> load = lognormal_shares(
      moe.routed_experts, busiest_expert > 0 ? busiest_expert : std::min(kAssumed, most_of_an_expert(moe)));
  // The deviation of a rank's load in even shares, where tokens choose any experts; that all loads add up to p makes those
  // of two ranks differ more than if each were drawn by itself.
  const double chance = e > 1 ? std::sqrt(p / (tokens * k) * (e - k) / (e - 1)) : 0;
  const Philox random(/*seed=*/1, /*stream=*/0);
  std::vector<double> chances(static_cast<std::size_t>(ranks));
  std::uint64_t drawn = 0;
  double sum = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    for (std::size_t i = load.size(); i > 1; --i) std::swap(load[i - 1], load[random.below(drawn++, i)]);
    for (double& c : chances) c = chance * static_cast<double>(random.normal(drawn++));
    const double mean = std::accumulate(chances.begin(), chances.end(), 0.0) / p;
    double busiest = 0;
    for (Index r = 0; r < ranks; ++r)
      busiest = std::max(busiest, load_of_rank(load, r, ranks) * p / e + chances[static_cast<std::size_t>(r)] - mean);
    sum += busiest;
  }
  return std::min(sum / kDraws, p * std::min(k, std::ceil(e / p)) / k);
}

double busiest_rank(const std::vector<std::int64_t>& counted, Index ranks) {
  std::int64_t busiest = 0;
  for (Index r = 0; r < ranks; ++r) busiest = std::max(busiest, load_of_rank(counted, r, ranks));
  const std::int64_t all = std::accumulate(counted.begin(), counted.end(), std::int64_t{0});
  return number(busiest) * number(ranks) / number(all);
}

}  // namespace dsmoe::train
