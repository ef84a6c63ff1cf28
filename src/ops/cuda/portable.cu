// The experts' products as Ops of portable.cuh.
#include "ops/cuda/portable.cuh"
#include "ops/cuda/portable.h"

namespace dsmoe::cuda::portable {

namespace {

struct Base {
  const std::int32_t* row_offset;
  const std::int32_t* row_token;
  const float* row_weight;
  int width, expert_width;

  __device__ Rows rows(int e) const { return {e, row_offset[e], row_offset[e + 1] - row_offset[e]}; }
};

// m: rows, n: 32 gate columns and the same 32 up columns, k: D.
template <class T>
struct GateUp : Base {
  static constexpr bool kContiguousN = false, kContiguousM = false;
  const T *x, *weights;
  T *h, *gate_up;
  __device__ int m_size(const Rows& r) const { return r.count; }
  __device__ int k_size(const Rows&) const { return width; }
  __device__ float a(const Rows& r, int m, int k) const {
    return to_float(x[static_cast<std::size_t>(row_token[r.begin + m]) * width + k]);
  }
  __device__ float b(const Rows& r, int n, int k) const {
    const int f = n / 64 * 32 + n % 32, half = n / 32 % 2;
    return f < expert_width
               ? to_float(weights[(static_cast<std::size_t>(r.expert * 2 + half) * expert_width + f) * width + k])
               : 0.0f;
  }
  __device__ int n_size() const { return (expert_width + 31) / 32 * 64; }
  __device__ void store(const Rows& r, const Result& c) const {
    for (int i = threadIdx.x; i < kTile * 32; i += kThreads) {
      const int m = i / 32, j = i % 32, f = c.n0 / 2 + j;
      if (c.m0 + m >= r.count || f >= expert_width) continue;
      const float g = c.tile[m][j], u = c.tile[m][j + 32];
      const std::size_t row = r.begin + c.m0 + m;
      put(g / (1.0f + expf(-g)) * u, h + row * expert_width + f);
      if (!gate_up) continue;
      put(g, gate_up + row * 2 * expert_width + f);
      put(u, gate_up + row * 2 * expert_width + expert_width + f);
    }
  }
};

// m: rows, n: D, k: F (down, weights [D, F]) or 2F (input backward, weights [2F, D]).
template <class T, bool kBackward>
struct Down : Base {
  static constexpr bool kContiguousN = kBackward, kContiguousM = false;
  const T *in, *weights;
  T* out;
  __device__ int m_size(const Rows& r) const { return r.count; }
  __device__ int n_size() const { return width; }
  __device__ int k_size(const Rows&) const { return kBackward ? 2 * expert_width : expert_width; }
  __device__ float a(const Rows& r, int m, int k) const {
    return to_float(in[static_cast<std::size_t>(r.begin + m) * k_size(r) + k]);
  }
  __device__ float b(const Rows& r, int n, int k) const {
    const std::size_t at =
        kBackward ? static_cast<std::size_t>(k) * width + n : static_cast<std::size_t>(n) * expert_width + k;
    return to_float(weights[static_cast<std::size_t>(r.expert) * width * k_size(r) + at]);
  }
  __device__ void store(const Rows& r, const Result& c) const {
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int m = i / kTile, n = i % kTile;
      if (c.m0 + m < r.count && c.n0 + n < width)
        put(c.tile[m][n], out + static_cast<std::size_t>(r.begin + c.m0 + m) * width + c.n0 + n);
    }
  }
};

// m: rows, n: F, k: D. The tile is the gradient of h before the row's weight.
template <class T>
struct HiddenBackward : Base {
  static constexpr bool kContiguousN = true, kContiguousM = false;
  const T *dy, *weights;
  T *gate_up, *weighted;
  float* weight_grad;
  int parts;
  __device__ int m_size(const Rows& r) const { return r.count; }
  __device__ int n_size() const { return expert_width; }
  __device__ int k_size(const Rows&) const { return width; }
  __device__ float a(const Rows& r, int m, int k) const {
    return to_float(dy[static_cast<std::size_t>(row_token[r.begin + m]) * width + k]);
  }
  __device__ float b(const Rows& r, int n, int k) const {
    return to_float(weights[(static_cast<std::size_t>(r.expert) * width + k) * expert_width + n]);
  }
  // One thread per row, so that the sum over its columns has one order.
  __device__ void store(const Rows& r, const Result& c) const {
    const int m = threadIdx.x;
    if (m >= kTile || c.m0 + m >= r.count) return;
    const std::size_t row = r.begin + c.m0 + m;
    const float weight = row_weight[row];
    float dot = 0.0f;
    for (int n = 0; n < kTile && c.n0 + n < expert_width; ++n) {
      T* gate = gate_up + row * 2 * expert_width + c.n0 + n;
      T* up = gate + expert_width;
      const float g = to_float(*gate), u = to_float(*up), dh = c.tile[m][n];
      const float s = 1.0f / (1.0f + expf(-g)), silu = g * s;
      dot = fmaf(dh, silu * u, dot);
      put(weight * silu * u, weighted + row * expert_width + c.n0 + n);
      put(weight * dh * u * (s + silu * (1.0f - s)), gate);
      put(weight * dh * silu, up);
    }
    weight_grad[row * parts + c.n0 / kTile] = dot;
  }
};

// m: columns of a, n: D, k: the expert's rows.
template <class T, class G>
struct WeightBackward : Base {
  static constexpr bool kContiguousN = true, kContiguousM = true;
  const T *in, *other;
  G* grad;
  int m_total;
  bool transposed, accumulate;
  __device__ int m_size(const Rows&) const { return m_total; }
  __device__ int n_size() const { return width; }
  __device__ int k_size(const Rows& r) const { return r.count; }
  __device__ float a(const Rows& r, int m, int k) const {
    return to_float(in[static_cast<std::size_t>(r.begin + k) * m_total + m]);
  }
  __device__ float b(const Rows& r, int n, int k) const {
    return to_float(other[static_cast<std::size_t>(row_token[r.begin + k]) * width + n]);
  }
  __device__ void store(const Rows& r, const Result& c) const {
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int m = transposed ? i % kTile : i / kTile, n = transposed ? i / kTile : i % kTile;
      if (c.m0 + m >= m_total || c.n0 + n >= width) continue;
      const std::size_t at = transposed ? static_cast<std::size_t>(c.n0 + n) * m_total + c.m0 + m
                                        : static_cast<std::size_t>(c.m0 + m) * width + c.n0 + n;
      G* out = grad + static_cast<std::size_t>(r.expert) * width * m_total + at;
      put(accumulate ? to_float(*out) + c.tile[m][n] : c.tile[m][n], out);
    }
  }
};

Base base(const Step& s) { return {s.plan.offset, s.plan.token, s.plan.weight, s.sizes.width, s.sizes.expert_width}; }

// Calls body with a null pointer of the step's element type.
template <class Body>
void with_type(const Step& s, Body&& body) {
  if (s.dtype == DType::kF32)
    body(static_cast<float*>(nullptr));
  else
    body(static_cast<bf16*>(nullptr));
}

}  // namespace

void gate_up(const Step& s, const void* x, const void* weights, void* h, void* gate_up) {
  with_type(s, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    run(GateUp<T>{base(s), static_cast<const T*>(x), static_cast<const T*>(weights), static_cast<T*>(h),
                  static_cast<T*>(gate_up)},
        s.mma, s.sizes.tokens, (s.sizes.expert_width + 31) / 32 * 64, s.sizes.experts, s.stream);
  });
}

void down(const Step& s, const void* h, const void* weights, void* out) {
  with_type(s, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    run(Down<T, false>{base(s), static_cast<const T*>(h), static_cast<const T*>(weights), static_cast<T*>(out)}, s.mma,
        s.sizes.tokens, s.sizes.width, s.sizes.experts, s.stream);
  });
}

int hidden_backward_parts(const Sizes& s) { return static_cast<int>(tiles(s.expert_width)); }

void hidden_backward(const Step& s, const void* dy, const void* down_weights, void* gate_up, void* weighted,
                     float* weight_grad) {
  with_type(s, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    run(HiddenBackward<T>{base(s), static_cast<const T*>(dy), static_cast<const T*>(down_weights), static_cast<T*>(gate_up),
                          static_cast<T*>(weighted), weight_grad, hidden_backward_parts(s.sizes)},
        s.mma, s.sizes.tokens, s.sizes.expert_width, s.sizes.experts, s.stream);
  });
}

void input_backward(const Step& s, const void* dgate_up, const void* weights, void* out) {
  with_type(s, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    run(Down<T, true>{base(s), static_cast<const T*>(dgate_up), static_cast<const T*>(weights), static_cast<T*>(out)},
        s.mma, s.sizes.tokens, s.sizes.width, s.sizes.experts, s.stream);
  });
}

void weight_backward(const Step& s, const WeightGrad& g) {
  const auto go = [&]<class T, class G>(T*, G*) {
    run(WeightBackward<T, G>{base(s), static_cast<const T*>(g.a), static_cast<const T*>(g.b), static_cast<G*>(g.grad), g.m,
                             g.transposed, g.accumulate},
        s.mma, g.m, s.sizes.width, s.sizes.experts, s.stream);
  };
  float* const f32 = nullptr;
  bf16* const narrow = nullptr;
  if (s.dtype == DType::kF32) return go(f32, f32);
  g.f32 ? go(narrow, f32) : go(narrow, narrow);
}

}  // namespace dsmoe::cuda::portable
