// Products that every head has for itself, as Ops of portable.cuh: a group is a head. Every output is one sum in ascending
// order. Pointers are at a head's first number or row; `step` is the distance to the next head's.
#include "ops/cuda/heads_mma.h"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/portable.cuh"
#include "ops/heads.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;
using gpu::portable::kTile;
using gpu::portable::Result;
using gpu::portable::Rows;

namespace {

constexpr int kThreads = 256;

// Rows of an operand of one head: number (i, j) is at[head * step + i * row + j].
template <class T>
struct Strided {
  T* at;
  Index step, row;
  __device__ T& operator()(int head, int i, int j) const { return at[head * step + i * row + j]; }
};

template <class T>
Strided<const T> numbers(const HeadNumbers& n) {
  return {static_cast<const T*>(n.x.raw()) + n.part.first, n.dim(), n.x.dim(1)};
}
template <class T>
Strided<T> numbers(HeadNumbers& n) {
  return {static_cast<T*>(n.x.raw_mutable()) + n.part.first, n.dim(), n.x.dim(1)};
}
template <class T>
Strided<const T> matrix(const HeadRows& w) {
  const Index k = w.w.dim(1);
  return {static_cast<const T*>(w.w.raw()) + w.part.first * k, w.rows() * k, k};
}

// c(m, n) = sum over k of a(m, k) b(n, k), where kTurnedA (B): a(k, m), b(k, n); added to what is there with kAdd.
template <class T, class Y, bool kTurnedA, bool kTurnedB, bool kAdd>
struct HeadProduct {
  static constexpr bool kContiguousM = kTurnedA, kContiguousN = kTurnedB;
  Strided<const T> left, right;
  Strided<Y> to;
  int m, n, k;
  __device__ Rows rows(int head) const { return {head, 0, m}; }
  __device__ int m_size(const Rows&) const { return m; }
  __device__ int n_size() const { return n; }
  __device__ int k_size(const Rows&) const { return k; }
  __device__ float a(const Rows& r, int i, int j) const {
    return gpu::to_float(kTurnedA ? left(r.expert, j, i) : left(r.expert, i, j));
  }
  __device__ float b(const Rows& r, int i, int j) const {
    return gpu::to_float(kTurnedB ? right(r.expert, j, i) : right(r.expert, i, j));
  }
  __device__ void store(const Rows& r, const Result& c) const {
    for (int i = threadIdx.x; i < kTile * kTile; i += gpu::portable::kThreads) {
      const int row = c.m0 + i / kTile, column = c.n0 + i % kTile;
      if (row >= m || column >= n) continue;
      Y& out = to(r.expert, row, column);
      gpu::portable::put(c.tile[i / kTile][i % kTile] + (kAdd ? gpu::to_float(out) : 0.0f), &out);
    }
  }
};

// The same sums by the kernels for aligned operands. Path kMma is for tests: it takes those for any.
bool run_fast(Context& ctx, const HeadNumbers& x, const HeadRows& w, bool turned, const HeadNumbers& y) {
  const gpu::Path path = gpu::forced_path();
  if (x.x.dtype() != DType::kBF16 || gpu::device_info().major < 8 || path == gpu::Path::kPlain || path == gpu::Path::kMma)
    return false;
  const auto place = [](const HeadNumbers& n) {
    return gpu::heads::Product::Place{static_cast<const gpu::bf16*>(n.x.raw()) + n.part.first, n.dim(), n.x.dim(1)};
  };
  const Index inner = w.w.dim(1);
  const gpu::heads::Product p{place(x),
                              {static_cast<const gpu::bf16*>(w.w.raw()) + w.part.first * inner, w.rows() * inner, inner},
                              place(y),
                              static_cast<int>(w.part.heads),
                              static_cast<int>(x.x.dim(0)),
                              static_cast<int>(y.part.width),
                              static_cast<int>(x.part.width),
                              turned};
  if (p.m == 0 || p.n == 0 || !gpu::heads::takes(p)) return false;
  gpu::heads::run(p, ctx.stream());
  return true;
}

template <class Op>
void run(Context& ctx, const Op& op, DType dtype, Index heads) {
  if (op.m == 0 || op.n == 0) return;
  const bool mma = dtype == DType::kBF16 && gpu::device_info().major >= 8 && gpu::forced_path() != gpu::Path::kPlain;
  gpu::portable::run(op, mma, op.m, op.n, heads, ctx.stream());
}

// One thread per number.
template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(Strided<const From> from, Strided<To> to, Index rows, int heads, int width) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * heads * width) return;
  const int column = static_cast<int>(i % width), head = static_cast<int>(i / width % heads);
  const int row = static_cast<int>(i / width / heads);
  gpu::from_float(gpu::to_float(from(head, row, column)), to(head, row, column));
}

int size(Index n) { return static_cast<int>(n); }

}  // namespace

void copy_heads(Context& ctx, const HeadNumbers& from, HeadNumbers& to) {
  const Index rows = from.x.dim(0), count = rows * from.part.heads * from.part.width;
  if (count == 0) return;
  gpu::with_type(from.x.dtype(), [&]<class From>(From) {
    gpu::with_type(to.x.dtype(), [&]<class To>(To) {
      gpu::launch(copy_kernel<From, To>, static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                  ctx.stream(), numbers<From>(from), numbers<To>(to), rows, size(from.part.heads), size(from.part.width));
    });
  });
}

void head_linear(Context& ctx, const HeadNumbers& x, const HeadRows& w, HeadNumbers& y) {
  if (run_fast(ctx, x, w, /*turned=*/false, y)) return;
  gpu::with_type(x.x.dtype(), [&]<class T>(T) {
    run(ctx,
        HeadProduct<T, T, false, false, false>{numbers<T>(x), matrix<T>(w), numbers<T>(y), size(x.x.dim(0)),
                                               size(w.part.width), size(w.w.dim(1))},
        x.x.dtype(), w.part.heads);
  });
}

void head_linear_backward_input(Context& ctx, const HeadNumbers& dy, const HeadRows& w, HeadNumbers& dx) {
  if (run_fast(ctx, dy, w, /*turned=*/true, dx)) return;
  gpu::with_type(dy.x.dtype(), [&]<class T>(T) {
    run(ctx,
        HeadProduct<T, T, false, true, false>{numbers<T>(dy), matrix<T>(w), numbers<T>(dx), size(dy.x.dim(0)),
                                              size(w.w.dim(1)), size(w.part.width)},
        dy.x.dtype(), w.part.heads);
  });
}

void head_linear_backward_weight(Context& ctx, const HeadNumbers& dy, const HeadNumbers& x, HeadRows& dw) {
  const Index k = dw.w.dim(1);
  const Strided<float> to{static_cast<float*>(dw.w.raw_mutable()) + dw.part.first * k, dw.rows() * k, k};
  gpu::with_type(dy.x.dtype(), [&]<class T>(T) {
    run(ctx,
        HeadProduct<T, float, true, true, true>{numbers<T>(dy), numbers<T>(x), to, size(dw.part.width), size(k),
                                                size(dy.x.dim(0))},
        dy.x.dtype(), dw.part.heads);
  });
}

}  // namespace dsmoe::ops::cuda
