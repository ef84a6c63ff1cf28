#include "ops/linear.h"

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

// c[m, n] (+)= a · b, cut into blocks of rows and columns. The lines of both operands are set by the caller.
template <class T, class Store>
void blocks(Context& ctx, Index m, Index n, Index k, const T* a, Index lda, Lines a_lines, const T* b, Index ldb,
            Lines b_lines, Store store) {
  const KernelTable& kt = kernels();
  const Index row_blocks = (m + kMaxRows - 1) / kMaxRows;  // of even height
  // The rows are packed again for every block of columns: with enough blocks of rows for the threads, columns stay whole.
  const Index cols = columns_per_task(ctx, kt, row_blocks > 1 ? n * std::min<Index>(2 * row_blocks, 4 * ctx.threads()) : n);
  const Index col_blocks = (n + cols - 1) / cols;
  ctx.pool().run(row_blocks * col_blocks, [&](Index task, int worker) {
    const Index row_block = task / col_blocks, m0 = m * row_block / row_blocks, n0 = task % col_blocks * cols;
    const Index rows = m * (row_block + 1) / row_blocks - m0, width = std::min(cols, n - n0);
    Workspace<T> ws(ctx, worker, kt, std::max(k, kMaxRows), std::max(k, kMaxCols));
    a_lines == Lines::kAlong ? list_lines(ws.a, rows, a + m0 * lda, lda) : list_lines(ws.a, k, a + m0, lda);
    b_lines == Lines::kAlong ? list_lines(ws.b, width, b + n0 * ldb, ldb) : list_lines(ws.b, k, b + n0, ldb);
    store(kt, m0, rows, n0, width, Operand<T>{ws.a, a_lines}, Operand<T>{ws.b, b_lines}, ws);
  });
}

}  // namespace

void linear(Context& ctx, const Tensor& x, const Tensor& w, Tensor& y) {
  const Index t = x.dim(0), n = w.dim(0), k = w.dim(1);
  dispatch(x.dtype(), [&]<class T>(T) {
    dispatch(y.dtype(), [&]<class Y>(Y) {
      Y* out = y.data<Y>();
      blocks<T>(ctx, t, n, k, x.data<T>(), k, Lines::kAlong, w.data<T>(), k, Lines::kAlong,
                [&](const KernelTable& kt, Index m0, Index rows, Index n0, Index width, Operand<T> a, Operand<T> b,
                    Workspace<T>& ws) {
                  if constexpr (sizeof(Y) == 4) {
                    product<T>(kt, rows, width, k, a, b, out + m0 * n + n0, n, false, ws.panels);
                  } else {
                    product<T>(kt, rows, width, k, a, b, ws.block, width, false, ws.panels);
                    for (Index i = 0; i < rows; ++i) from_f32(kt, width, ws.block + i * width, out + (m0 + i) * n + n0);
                  }
                });
    });
  });
}

void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, Tensor& dx, bool accumulate) {
  const Index t = dy.dim(0), n = w.dim(0), k = w.dim(1);
  float* out = dx.data<float>();
  dispatch(dy.dtype(), [&]<class T>(T) {
    blocks<T>(ctx, t, k, n, dy.data<T>(), n, Lines::kAlong, w.data<T>(), k, Lines::kAcross,
              [&](const KernelTable& kt, Index m0, Index rows, Index n0, Index width, Operand<T> a, Operand<T> b,
                  Workspace<T>& ws) { product<T>(kt, rows, width, n, a, b, out + m0 * k + n0, k, accumulate, ws.panels); });
  });
}

void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, Tensor& dw) {
  const Index t = dy.dim(0), n = dy.dim(1), k = x.dim(1);
  float* out = dw.data<float>();
  dispatch(dy.dtype(), [&]<class T>(T) {
    blocks<T>(ctx, n, k, t, dy.data<T>(), n, Lines::kAcross, x.data<T>(), k, Lines::kAcross,
              [&](const KernelTable& kt, Index m0, Index rows, Index n0, Index width, Operand<T> a, Operand<T> b,
                  Workspace<T>& ws) { product<T>(kt, rows, width, t, a, b, out + m0 * k + n0, k, true, ws.panels); });
  });
}

}  // namespace dsmoe::ops::cpu
