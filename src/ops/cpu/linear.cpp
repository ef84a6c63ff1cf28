#include "ops/linear.h"

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

// Columns per task. The rows are packed again for every block of columns, so with enough blocks of rows for the threads
// the columns stay together.
Index columns_for(const Context& ctx, const KernelTable& kt, Index n, Index row_blocks) {
  return columns_per_task(ctx, kt, row_blocks > 1 ? n * std::min<Index>(2 * row_blocks, 4 * ctx.threads()) : n);
}

// c[m, n] (+)= a · b, cut into blocks of rows and columns. The lines of both operands are set by the caller.
template <class T, class Store>
void blocks(Context& ctx, Index m, Index n, Index k, const T* a, Index lda, Lines a_lines, const T* b, Index ldb,
            Lines b_lines, Store store) {
  const KernelTable& kt = kernels();
  const Index row_blocks = (m + kMaxRows - 1) / kMaxRows;  // of even height
  const Index cols = columns_for(ctx, kt, n, row_blocks), col_blocks = (n + cols - 1) / cols;
  ctx.pool().run(row_blocks * col_blocks, [&](Index task, int worker) {
    const Index row_block = task / col_blocks, m0 = m * row_block / row_blocks, n0 = task % col_blocks * cols;
    const Index rows = m * (row_block + 1) / row_blocks - m0, width = std::min(cols, n - n0);
    Workspace<T> ws(ctx, worker, kt, std::max(k, kMaxRows), std::max(k, kMaxCols));
    // An operand without numbers (no tokens) has no address.
    if (a) a_lines == Lines::kAlong ? list_lines(ws.a, rows, a + m0 * lda, lda) : list_lines(ws.a, k, a + m0, lda);
    if (b) b_lines == Lines::kAlong ? list_lines(ws.b, width, b + n0 * ldb, ldb) : list_lines(ws.b, k, b + n0, ldb);
    store(kt, m0, rows, n0, width, Operand<T>{ws.a, a_lines}, Operand<T>{ws.b, b_lines}, ws);
  });
}

// Where f32 sums go: to where they belong, or into a buffer to be rounded.
float* f32_rows(float* to, float*) { return to; }
float* f32_rows(BFloat16*, float* buffer) { return buffer; }

}  // namespace

void linear(Context& ctx, const Tensor& x, std::span<const Projection> projections) {
  const KernelTable& kt = kernels();
  const Index t = x.dim(0), k = x.dim(1);
  Index n = 0;  // of all
  for (const Projection& p : projections) n += p.w->dim(0);
  const Index row_blocks = (t + kMaxRows - 1) / kMaxRows;  // of even height
  const Index cols = columns_for(ctx, kt, n, row_blocks);
  struct Task {
    const Projection* to;
    Index col;
  };
  std::vector<Task> tasks;
  for (const Projection& p : projections)
    for (Index col = 0; col < p.w->dim(0); col += cols) tasks.push_back({&p, col});
  const auto col_blocks = static_cast<Index>(tasks.size());

  dispatch(x.dtype(), [&]<class T>(T) {
    const auto lines_of = [&](const Task& task) { return task.to->w->data<T>() + task.col * k; };
    const auto node = [&](Index i) {
      const Task& task = tasks[static_cast<std::size_t>(i % col_blocks)];
      return ctx.pool().nodes().node_of(task.col, task.to->w->dim(0));
    };
    ctx.pool().run_at(row_blocks * col_blocks, node, [&](Index i, int worker) {
      const Task& task = tasks[static_cast<std::size_t>(i % col_blocks)];
      const Index row_block = i / col_blocks, m0 = t * row_block / row_blocks, rows = t * (row_block + 1) / row_blocks - m0;
      const Index all = task.to->w->dim(0), width = std::min(cols, all - task.col);
      Workspace<T> ws(ctx, worker, kt, kMaxRows, kMaxCols);
      list_lines(ws.a, rows, x.data<T>() + m0 * k, k);
      list_lines(ws.b, width, lines_of(task), k);
      // Threads take tasks in turns, so this one's next is likely the one that lies ctx.threads() further on.
      const Index next = i + ctx.threads();
      const T* const ahead = next < col_blocks ? lines_of(tasks[static_cast<std::size_t>(next)]) : nullptr;
      dispatch(task.to->y->dtype(), [&]<class Y>(Y) {
        Y* const out = task.to->y->template data<Y>() + m0 * all + task.col;
        float* const sums = f32_rows(out, ws.block);
        const Index ld = sizeof(Y) == 4 ? all : width;
        product<T>(kt, rows, width, k, {ws.a, Lines::kAlong}, {ws.b, Lines::kAlong}, sums, ld, false, ws.panels, ahead);
        for (Index r = 0; sizeof(Y) == 2 && r < rows; ++r) from_f32(kt, width, sums + r * width, out + r * all);
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
