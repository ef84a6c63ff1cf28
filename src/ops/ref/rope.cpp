#include "ops/rope.h"

#include "ops/dispatch.h"

namespace dsmoe::ops::ref {

void rope_angles(const Rope& rope, const Slices& slices, RopeAngles& angles) {
  const Index half = rope.head_dim() / 2;
  for (const Slice& s : slices)
    for (Index i = 0; i < s.rows; ++i)
      rope.turn(s.first_position + i, rope.frequencies(s.context), angles.cos.data<float>() + (s.first_row + i) * half,
                angles.sin.data<float>() + (s.first_row + i) * half);
}

void apply_rope(Tensor& x, const RopeAngles& angles, bool inverse) {
  const Index tokens = angles.rows(), half = angles.head_dim() / 2;
  const Index heads = tokens > 0 ? x.numel() / tokens / angles.head_dim() : 0;
  dispatch(x.dtype(), [&]<class T>(T) {
    for (Index t = 0; t < tokens; ++t) {
      for (Index h = 0; h < heads; ++h) {
        for (Index i = 0; i < half; ++i) {
          const double cos = angles.cos.data<float>()[t * half + i];
          const double sin = (inverse ? -1.0 : 1.0) * angles.sin.data<float>()[t * half + i];
          T& first = x.data<T>()[(t * heads + h) * 2 * half + i];
          T& second = x.data<T>()[(t * heads + h) * 2 * half + half + i];
          const double a = static_cast<float>(first), b = static_cast<float>(second);
          first = T(static_cast<float>(a * cos - b * sin));
          second = T(static_cast<float>(b * cos + a * sin));
        }
      }
    }
  });
}

}  // namespace dsmoe::ops::ref
