#include "ops/rope.h"

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

void rope_angles(Context& ctx, const Rope& rope, const Slices& slices, RopeAngles& angles) {
  const Index half = rope.head_dim() / 2;
  float *const cos = angles.cos.data<float>(), *const sin = angles.sin.data<float>();
  const Slice* before = nullptr;
  for (const Slice& s : slices) {
    // The sequences of a training batch all have the same angles.
    if (before && before->first_position == s.first_position && before->rows == s.rows && before->context == s.context) {
      for (float* x : {cos, sin}) std::copy_n(x + before->first_row * half, s.rows * half, x + s.first_row * half);
    } else {
      const std::vector<float> frequencies = rope.frequencies(s.context);
      each_block(ctx, s.rows, kTokensPerTask, [&](Index first, Index last, int) {
        for (Index i = first; i < last; ++i) {
          const Index row = (s.first_row + i) * half;
          rope.turn(s.first_position + i, frequencies, cos + row, sin + row);
        }
      });
    }
    before = &s;
  }
}

void apply_rope(Context& ctx, Tensor& x, const RopeAngles& angles, bool inverse) {
  const KernelTable& kt = kernels();
  const Index tokens = angles.rows(), half = angles.head_dim() / 2, width = tokens > 0 ? x.numel() / tokens : 0;
  const float *const cos = angles.cos.data<float>(), *const sin = angles.sin.data<float>();
  const float sign = inverse ? -1.0f : 1.0f;
  dispatch(x.dtype(), [&]<class T>(T) {
    T* const data = x.data<T>();
    each_block(ctx, tokens, kTokensPerTask, [&](Index first, Index last, int worker) {
      for (Index t = first; t < last; ++t) {
        const auto rotate = [&](float* row) {
          for (Index at = 0; at < width; at += 2 * half)
            kt.rotate(half, cos + t * half, sin + t * half, sign, row + at, row + at + half);
        };
        if constexpr (sizeof(T) == 4) {
          rotate(data + t * width);
        } else {
          auto* const row = static_cast<float*>(ctx.scratch(worker, static_cast<std::size_t>(width) * sizeof(float)));
          to_f32(kt, width, data + t * width, row);
          rotate(row);
          from_f32(kt, width, row, data + t * width);
        }
      }
    });
  });
}

}  // namespace dsmoe::ops::cpu
