// y = x · Wᵀ as an Op of portable.cuh: one group that has all rows.
#include "ops/cuda/linear.h"
#include "ops/cuda/portable.cuh"

namespace dsmoe::cuda::portable {

namespace {

// m: rows, n: columns of y, k: columns of x.
template <class T, class Y>
struct Linear {
  static constexpr bool kContiguousM = false, kContiguousN = false;
  LinearSizes s;
  const T *x, *w;
  Y* y;
  __device__ Rows rows(int) const { return {0, 0, s.rows}; }
  __device__ int m_size(const Rows&) const { return s.rows; }
  __device__ int n_size() const { return s.columns; }
  __device__ int k_size(const Rows&) const { return s.inner; }
  __device__ float a(const Rows&, int m, int k) const { return to_float(x[static_cast<std::size_t>(m) * s.inner + k]); }
  __device__ float b(const Rows&, int n, int k) const { return to_float(w[static_cast<std::size_t>(n) * s.inner + k]); }
  __device__ void store(const Rows&, const Result& c) const {
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int m = i / kTile, n = i % kTile;
      if (c.m0 + m < s.rows && c.n0 + n < s.columns)
        put(c.tile[m][n], y + static_cast<std::size_t>(c.m0 + m) * s.columns + c.n0 + n);
    }
  }
};

template <class T, class Y>
void run_linear(const LinearSizes& s, bool mma, const void* x, const void* w, void* y, cudaStream_t stream) {
  run(Linear<T, Y>{s, static_cast<const T*>(x), static_cast<const T*>(w), static_cast<Y*>(y)}, mma, s.rows, s.columns, 1,
      stream);
}

}  // namespace

void linear(const LinearSizes& s, DType dtype, bool mma, const void* x, const void* w, DType y_dtype, void* y,
            cudaStream_t stream) {
  if (dtype == DType::kF32) return run_linear<float, float>(s, false, x, w, y, stream);
  if (y_dtype == DType::kF32) return run_linear<bf16, float>(s, mma, x, w, y, stream);
  run_linear<bf16, bf16>(s, mma, x, w, y, stream);
}

}  // namespace dsmoe::cuda::portable
