// How similarly two models, or two checkpoints of one run, route the same tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "study/routing_batch.h"

namespace dsmoe::study {

class LayerAgreement {
 public:
  explicit LayerAgreement(Index experts) : experts_(experts), together_(static_cast<std::size_t>(experts * experts)) {}
  void add(const RoutingBatch::Layer& a, const RoutingBatch::Layer& b);

  // All are shares of the K choices of a token, averaged over tokens.
  double overlap() const;               // chosen by both, expert i being expert i
  double chance_overlap() const;        // what two independent routings with these loads would share
  double first_choice() const;          // tokens whose best expert is the same
  double matched_overlap() const;       // overlap when experts are renamed in the best way
  std::vector<Index> matching() const;  // [E] expert of b that takes the part of each expert of a

 private:
  Index experts_;
  std::int64_t tokens_ = 0, choices_ = 0, same_first_ = 0;
  std::vector<std::int64_t> together_;  // [E, E] tokens of which a chose the row's and b the column's expert
};

class RoutingAgreement {
 public:
  explicit RoutingAgreement(const RoutingShape& shape);
  void add(const RoutingBatch& a, const RoutingBatch& b);  // the same tokens
  const std::vector<LayerAgreement>& layers() const { return layers_; }

 private:
  std::vector<LayerAgreement> layers_;
};

// The assignment of rows to columns of a square matrix [n, n] with the largest sum (Kuhn and Munkres, O(n³)).
std::vector<Index> best_assignment(const std::vector<std::int64_t>& value, Index n);

}  // namespace dsmoe::study
