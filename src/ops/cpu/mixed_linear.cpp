// linear() with f32 rows and a matrix in another dtype.
#include "ops/cpu/mixed_product.h"
#include "ops/cpu/tasks.h"
#include "ops/mixed.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

void linear_mixed(Context& ctx, const Tensor& x, const Tensor& w, Tensor& y) {
  const Index tokens = x.dim(0), n = w.dim(0), k = w.dim(1);
  const Index row_blocks = (tokens + kMixedRows - 1) / kMixedRows, last_rows = tokens - (row_blocks - 1) * kMixedRows;
  const RoundedFor use{is_quantized(w.dtype()) && last_rows <= kQuantFewRows,
                       is_quantized(w.dtype()) && tokens > kQuantFewRows};
  const MixedRows rows(ctx, x.data<float>(), tokens, k, use);
  const MixedMatrix matrix{static_cast<const char*>(w.raw()), w.dtype(), static_cast<Index>(row_bytes(w.dtype(), k))};
  const Index cols = mixed_columns_per_task(ctx, n, tokens), col_blocks = (n + cols - 1) / cols;
  float* const out = y.data<float>();
  ctx.pool().run(row_blocks * col_blocks, [&](Index task, int worker) {
    const Index row = task / col_blocks * kMixedRows, col = task % col_blocks * cols;
    const Index here = std::min(cols, n - col);
    MixedProduct product(ctx, worker, k, 0);
    product.run(rows, nullptr, row, std::min(kMixedRows, tokens - row), matrix, col, here, out + row * n + col, n,
                col + here < n ? matrix.row(col + here) : nullptr);
  });
}

}  // namespace dsmoe::ops::cpu
