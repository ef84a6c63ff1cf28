// y = x · Wᵀ and its gradients as Ops of portable.cuh: one group that has all rows.
#include "ops/cuda/linear.h"
#include "ops/cuda/portable.cuh"

namespace dsmoe::cuda::portable {

namespace {

// m: rows, n: columns of y, k: columns of x.
template <class T, class Y>
struct Linear {
  static constexpr bool kContiguousM = false, kContiguousN = false;
  LinearSizes s;
  int columns;
  const T *x, *w;
  Y* y;
  __device__ Rows rows(int) const { return {0, 0, s.rows}; }
  __device__ int m_size(const Rows&) const { return s.rows; }
  __device__ int n_size() const { return columns; }
  __device__ int k_size(const Rows&) const { return s.inner; }
  __device__ float a(const Rows&, int m, int k) const { return to_float(x[static_cast<std::size_t>(m) * s.inner + k]); }
  __device__ float b(const Rows&, int n, int k) const { return to_float(w[static_cast<std::size_t>(n) * s.inner + k]); }
  __device__ void store(const Rows&, const Result& c) const {
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int m = i / kTile, n = i % kTile;
      if (c.m0 + m < s.rows && c.n0 + n < columns)
        put(c.tile[m][n], y + static_cast<std::size_t>(c.m0 + m) * columns + c.n0 + n);
    }
  }
};

template <class T, class Y>
void run_linear(const LinearSizes& s, bool mma, const void* x, const LinearMatrix& m, cudaStream_t stream) {
  run(Linear<T, Y>{s, m.columns, static_cast<const T*>(x), static_cast<const T*>(m.w), static_cast<Y*>(m.y)}, mma, s.rows,
      m.columns, 1, stream);
}

// dx = dy · W. m: rows, n: columns of W, k: rows of W.
template <class T>
struct InputGrad {
  static constexpr bool kContiguousM = false, kContiguousN = true;
  LinearGradSizes s;
  const T *dy, *w;
  float* dx;
  bool accumulate;
  __device__ Rows rows(int) const { return {0, 0, s.rows}; }
  __device__ int m_size(const Rows&) const { return s.rows; }
  __device__ int n_size() const { return s.inner; }
  __device__ int k_size(const Rows&) const { return s.columns; }
  __device__ float a(const Rows&, int m, int k) const { return to_float(dy[static_cast<std::size_t>(m) * s.columns + k]); }
  __device__ float b(const Rows&, int n, int k) const { return to_float(w[static_cast<std::size_t>(k) * s.inner + n]); }
  __device__ void store(const Rows&, const Result& c) const {
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int m = i / kTile, n = i % kTile;
      if (c.m0 + m >= s.rows || c.n0 + n >= s.inner) continue;
      float* const to = dx + static_cast<std::size_t>(c.m0 + m) * s.inner + c.n0 + n;
      *to = accumulate ? *to + c.tile[m][n] : c.tile[m][n];
    }
  }
};

// dW = dyᵀ · x. m: rows of W, n: columns of W, k: rows of dy and x.
template <class T>
struct WeightGrad {
  static constexpr bool kContiguousM = true, kContiguousN = true;
  LinearGradSizes s;
  const T *dy, *x;
  float* dw;
  bool accumulate;
  __device__ Rows rows(int) const { return {0, 0, s.rows}; }
  __device__ int m_size(const Rows&) const { return s.columns; }
  __device__ int n_size() const { return s.inner; }
  __device__ int k_size(const Rows&) const { return s.rows; }
  __device__ float a(const Rows&, int m, int k) const { return to_float(dy[static_cast<std::size_t>(k) * s.columns + m]); }
  __device__ float b(const Rows&, int n, int k) const { return to_float(x[static_cast<std::size_t>(k) * s.inner + n]); }
  __device__ void store(const Rows&, const Result& c) const {
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int m = i / kTile, n = i % kTile;
      if (c.m0 + m >= s.columns || c.n0 + n >= s.inner) continue;
      float* const to = dw + static_cast<std::size_t>(c.m0 + m) * s.inner + c.n0 + n;
      *to = accumulate ? *to + c.tile[m][n] : c.tile[m][n];
    }
  }
};

}  // namespace

void linear_backward_input(const LinearGradSizes& s, DType dtype, bool mma, const void* dy, const void* w, float* dx,
                           bool accumulate, cudaStream_t stream) {
  with_type(dtype, [&]<class T>(T) {
    run(InputGrad<T>{s, static_cast<const T*>(dy), static_cast<const T*>(w), dx, accumulate}, mma, s.rows, s.inner, 1,
        stream);
  });
}

void linear_backward_weight(const LinearGradSizes& s, DType dtype, bool mma, const void* dy, const void* x, float* dw,
                            bool accumulate, cudaStream_t stream) {
  with_type(dtype, [&]<class T>(T) {
    run(WeightGrad<T>{s, static_cast<const T*>(dy), static_cast<const T*>(x), dw, accumulate}, mma, s.columns, s.inner, 1,
        stream);
  });
}

void linear(const LinearSizes& s, DType dtype, bool mma, const void* x, const LinearMatrix& m, DType y_dtype,
            cudaStream_t stream) {
  if (dtype == DType::kF32) return run_linear<float, float>(s, false, x, m, stream);
  if (y_dtype == DType::kF32) return run_linear<bf16, float>(s, mma, x, m, stream);
  run_linear<bf16, bf16>(s, mma, x, m, stream);
}

}  // namespace dsmoe::cuda::portable
