// Rotary position embedding: element i of a head and element i + head_dim / 2 are turned together by the angle
// position * theta^(-2 i / rotary), where rotary is head_dim or, where only a part of a head is turned, less. Angles are
// computed for the positions of a batch, row by row.
#pragma once

#include <span>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/rope_scaling.h"
#include "dsmoe/tensor.h"
#include "ops/slice.h"

namespace dsmoe::ops {

// How a model turns. Linear scaling divides positions by the factor. Dynamic scaling stretches theta for a sequence that
// is opened for more than max_position_embeddings positions, by their number (docs/design/dynamic-rope.md), or, with an
// alpha, for every sequence alike. YaRN divides
// the frequencies of slow pairs, whatever the length, and multiplies cosines and sines with a factor.
class Rope {
 public:
  // rotary: numbers of a head that are turned, 0 for all: pairs from rotary / 2 on have frequency 0 and stay as they are.
  Rope(Index head_dim, double theta, const RopeScaling& scaling, Index max_position_embeddings, Index rotary = 0);

  Index head_dim() const { return head_dim_; }
  bool scaled_by(Index context) const {  // whether the frequencies depend on this context (dynamic scaling)
    return scaling_.by_length() && context > max_position_embeddings_;
  }
  std::vector<float> frequencies(Index context) const;  // [head_dim / 2], of a sequence opened for so many positions
  float divisor() const {                               // of positions
    return scaling_.type == RopeScalingType::kLinear ? static_cast<float>(scaling_.factor) : 1.0f;
  }
  float angle_factor() const { return angle_factor_; }  // of the cosines and sines of the first turned_pairs()
  Index turned_pairs() const { return rotary_ / 2; }
  // The cosines and sines of one position, [head_dim / 2] each.
  void turn(Index position, std::span<const float> frequencies, float* cos, float* sin) const;

 private:
  std::vector<float> frequencies_of(double theta) const;
  std::vector<float> yarn_frequencies() const;

  Index head_dim_, rotary_;
  double theta_;
  RopeScaling scaling_;
  Index max_position_embeddings_;
  float angle_factor_;
  std::vector<float> frequencies_;  // of sequences that are not stretched
};

struct RopeAngles {
  Tensor cos, sin;  // [T, head_dim / 2] f32

  Index rows() const { return cos.dim(0); }
  Index head_dim() const { return 2 * cos.dim(1); }
};

// For the rows of a batch. A slice's frequencies are those of its context, so all passes over a sequence turn alike,
// however it is cut into passes. With dynamic scaling, positions past both max_position_embeddings and the context are an
// Error.
RopeAngles rope_angles(Context& ctx, const Rope& rope, const Slices& slices);

// Turns x [T, H, head_dim] (or [T, H * head_dim]; f32 or bf16) in place, row t by row t of the angles.
// inverse turns back, which is also the gradient: d(before) from d(after); with an angle_factor() it is the gradient alone.
void apply_rope(Context& ctx, Tensor& x, const RopeAngles& angles, bool inverse = false);

namespace ref {
void rope_angles(const Rope& rope, const Slices& slices, RopeAngles& angles);
void apply_rope(Tensor& x, const RopeAngles& angles, bool inverse);
}  // namespace ref
namespace cpu {
void rope_angles(Context& ctx, const Rope& rope, const Slices& slices, RopeAngles& angles);
void apply_rope(Context& ctx, Tensor& x, const RopeAngles& angles, bool inverse);
}  // namespace cpu
namespace cuda {
void rope_angles(Context& ctx, const Rope& rope, const Slices& slices, RopeAngles& angles);
void apply_rope(Context& ctx, Tensor& x, const RopeAngles& angles, bool inverse);
}  // namespace cuda

}  // namespace dsmoe::ops
