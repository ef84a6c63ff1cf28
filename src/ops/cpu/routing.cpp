#include "ops/routing.h"

#include "ops/cpu/kernels.h"

namespace dsmoe::ops::cpu {

void scores_row(ScoreFunction score, Index e, const float* logits, float* scores) {
  if (score == ScoreFunction::kSoftmax) {
    dsmoe::cpu::kernels().softmax(e, logits, scores);
  } else {
    dsmoe::cpu::kernels().sigmoid(e, logits, scores);
  }
}

}  // namespace dsmoe::ops::cpu
