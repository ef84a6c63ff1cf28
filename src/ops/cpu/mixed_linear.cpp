// linear() with f32 rows and matrices in other dtypes.
#include <vector>

#include "ops/cpu/mixed_product.h"
#include "ops/cpu/tasks.h"
#include "ops/mixed.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

void linear_mixed(Context& ctx, const Tensor& x, std::span<const Projection> projections) {
  const Index tokens = x.dim(0), k = x.dim(1);
  const Index row_blocks = (tokens + kMixedRows - 1) / kMixedRows, last_rows = tokens - (row_blocks - 1) * kMixedRows;
  Index n = 0;  // of all
  RoundedFor use;
  for (const Projection& p : projections) {
    n += p.w->dim(0);
    use.add(p.w->dtype(), last_rows);
    if (row_blocks > 1) use.add(p.w->dtype(), kMixedRows);
  }
  const MixedRows rows(ctx, x.data<float>(), tokens, k, use);  // rounded once for all matrices
  struct Task {
    MixedMatrix matrix;
    Tensor* y;
    Index col, cols;
  };
  std::vector<Task> tasks;
  StreamCuts cuts(ctx, n, tokens <= kQuantFewRows);
  for (const Projection& p : projections) {
    const DType dtype = p.w->dtype();
    const MixedMatrix matrix{static_cast<const char*>(p.w->raw()), dtype, static_cast<Index>(row_bytes(dtype, k))};
    const Index width = p.w->dim(0);
    for (Index c = 0; c < width; c += tasks.back().cols) tasks.push_back({matrix, p.y, c, cuts.take(width - c)});
  }
  const auto col_blocks = static_cast<Index>(tasks.size());
  const auto node = [&](Index i) {
    const Task& task = tasks[static_cast<std::size_t>(i % col_blocks)];
    return ctx.pool().nodes().node_of(task.col, task.y->dim(1));
  };
  ctx.pool().run_at(row_blocks * col_blocks, node, [&](Index i, int worker) {
    const Task& task = tasks[static_cast<std::size_t>(i % col_blocks)];
    const Index row = i / col_blocks * kMixedRows, all = task.y->dim(1);
    // Threads take tasks in turns, so this one's next is likely the one that lies ctx.threads() further on.
    const Index next = i + ctx.threads();
    const Task* const after =
        next < row_blocks * col_blocks ? &tasks[static_cast<std::size_t>(next % col_blocks)] : nullptr;
    MixedProduct product(ctx, worker, k, 0);
    product.run(rows, nullptr, row, std::min(kMixedRows, tokens - row), task.matrix, task.col, task.cols,
                task.y->data<float>() + row * all + task.col, all, after ? after->matrix.row(after->col) : nullptr);
  });
}

}  // namespace dsmoe::ops::cpu
