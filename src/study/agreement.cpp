#include "study/agreement.h"

#include <limits>

#include "core/fail.h"

namespace dsmoe::study {

void LayerAgreement::add(const RoutingBatch::Layer& a, const RoutingBatch::Layer& b) {
  require(a.experts.shape() == b.experts.shape(), "choices {} and {} cannot be compared", a.experts.shape(),
          b.experts.shape());
  const Index tokens = a.experts.dim(0), k = a.experts.dim(1);
  const std::int32_t *x = a.experts.data<std::int32_t>(), *y = b.experts.data<std::int32_t>();
  for (Index t = 0; t < tokens; ++t, x += k, y += k) {
    for (Index i = 0; i < k; ++i)
      for (Index j = 0; j < k; ++j) together_[static_cast<std::size_t>(x[i] * experts_ + y[j])]++;
    same_first_ += x[0] == y[0];
  }
  tokens_ += tokens;
  choices_ += tokens * k;
}

double LayerAgreement::overlap() const {
  std::int64_t same = 0;
  for (Index e = 0; e < experts_; ++e) same += together_[static_cast<std::size_t>(e * experts_ + e)];
  return choices_ > 0 ? static_cast<double>(same) / static_cast<double>(choices_) : 0;
}

double LayerAgreement::chance_overlap() const {
  if (choices_ == 0) return 0;
  // Each choice of a is counted once per choice of b, so a row's sum is K times the load.
  const double k = static_cast<double>(choices_) / static_cast<double>(tokens_), tokens = static_cast<double>(tokens_);
  double expected = 0;
  for (Index e = 0; e < experts_; ++e) {
    double row = 0, column = 0;
    for (Index o = 0; o < experts_; ++o) {
      row += static_cast<double>(together_[static_cast<std::size_t>(e * experts_ + o)]) / k;
      column += static_cast<double>(together_[static_cast<std::size_t>(o * experts_ + e)]) / k;
    }
    expected += row / tokens * (column / tokens);
  }
  return expected / k;
}

double LayerAgreement::first_choice() const {
  return tokens_ > 0 ? static_cast<double>(same_first_) / static_cast<double>(tokens_) : 0;
}

std::vector<Index> LayerAgreement::matching() const { return best_assignment(together_, experts_); }

double LayerAgreement::matched_overlap() const {
  const std::vector<Index> match = matching();
  std::int64_t same = 0;
  for (Index e = 0; e < experts_; ++e)
    same += together_[static_cast<std::size_t>(e * experts_ + match[static_cast<std::size_t>(e)])];
  return choices_ > 0 ? static_cast<double>(same) / static_cast<double>(choices_) : 0;
}

RoutingAgreement::RoutingAgreement(const RoutingShape& shape)
    : layers_(shape.layers.size(), LayerAgreement(shape.routed_experts)) {}

void RoutingAgreement::add(const RoutingBatch& a, const RoutingBatch& b) {
  require(a.tokens == b.tokens && a.layers.size() == layers_.size() && b.layers.size() == layers_.size(),
          "the two routings are not of the same tokens and layers");
  for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i].add(a.layers[i], b.layers[i]);
}

// Shortest augmenting paths with potentials, one row after another; row and column 0 are sentinels.
std::vector<Index> best_assignment(const std::vector<std::int64_t>& value, Index n) {
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 2;
  const auto size = static_cast<std::size_t>(n) + 1;
  const auto cost = [&](std::size_t row, std::size_t column) {
    return -value[(row - 1) * static_cast<std::size_t>(n) + column - 1];
  };
  std::vector<std::int64_t> u(size), v(size);
  std::vector<std::size_t> row_of(size), way(size);
  for (std::size_t row = 1; row < size; ++row) {
    row_of[0] = row;
    std::size_t column = 0;
    std::vector<std::int64_t> least(size, kFar);
    std::vector<bool> used(size);
    do {
      used[column] = true;
      const std::size_t from = row_of[column];
      std::int64_t step = kFar;
      std::size_t next = 0;
      for (std::size_t j = 1; j < size; ++j) {
        if (used[j]) continue;
        const std::int64_t reduced = cost(from, j) - u[from] - v[j];
        if (reduced < least[j]) least[j] = reduced, way[j] = column;
        if (least[j] < step) step = least[j], next = j;
      }
      for (std::size_t j = 0; j < size; ++j) {
        if (used[j])
          u[row_of[j]] += step, v[j] -= step;
        else
          least[j] -= step;
      }
      column = next;
    } while (row_of[column] != 0);
    for (; column != 0; column = way[column]) row_of[column] = row_of[way[column]];
  }
  std::vector<Index> match(static_cast<std::size_t>(n));
  for (std::size_t j = 1; j < size; ++j) match[row_of[j] - 1] = static_cast<Index>(j) - 1;
  return match;
}

}  // namespace dsmoe::study
