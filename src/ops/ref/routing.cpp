#include "ops/routing.h"

#include <algorithm>
#include <cmath>

namespace dsmoe::ops::ref {

void scores_row(ScoreFunction score, Index e, const float* logits, float* scores) {
  if (score == ScoreFunction::kSigmoid) {
    for (Index i = 0; i < e; ++i) scores[i] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logits[i]))));
    return;
  }
  const double largest = *std::max_element(logits, logits + e);
  double sum = 0;
  for (Index i = 0; i < e; ++i) sum += std::exp(logits[i] - largest);
  for (Index i = 0; i < e; ++i) scores[i] = static_cast<float>(std::exp(logits[i] - largest) / sum);
}

}  // namespace dsmoe::ops::ref
