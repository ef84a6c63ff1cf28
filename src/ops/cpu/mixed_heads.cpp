// head_linear() with f32 rows and matrices in other dtypes. A row of a product is what one head has of a token.
#include <array>
#include <vector>

#include "ops/cpu/mixed_product.h"
#include "ops/cpu/tasks.h"
#include "ops/mixed.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

// The numbers of all heads as rows: row t * heads + h is head h of token t.
struct HeadProduct {
  const HeadNumbers& x;
  const HeadRows& w;
  HeadNumbers& y;
  MixedMatrix matrix;
  MixedRows rows;

  HeadProduct(Context& ctx, const HeadNumbers& from, const HeadRows& weights, HeadNumbers& to)
      : x(from),
        w(weights),
        y(to),
        matrix{static_cast<const char*>(w.w.raw()), w.w.dtype(), static_cast<Index>(row_bytes(w.w.dtype(), w.w.dim(1)))},
        rows(ctx, x.x.data<float>() + x.part.first, x.x.dim(0) * x.part.heads, w.w.dim(1), x.dim(), use()) {}

  Index tokens() const { return x.x.dim(0); }
  Index heads() const { return w.part.heads; }
  // The row of the file's matrix that is column `column` of all heads' results, one head's after the other's.
  Index row_of(Index column) const { return column / w.part.width * w.rows() + w.part.first + column % w.part.width; }

  // The columns [begin, end) of one head's tokens [first, first + count); `next` is what will be read afterwards.
  void run(MixedProduct& product, Index first, Index count, Index begin, Index end, const char* next) const {
    const Index head = begin / w.part.width, column = begin % w.part.width;
    std::int32_t row[kMixedRows];
    for (Index i = 0; i < count; ++i) row[i] = static_cast<std::int32_t>((first + i) * heads() + head);
    float* const out = y.x.data<float>() + first * y.x.dim(1) + head * y.dim() + y.part.first + column;
    product.run(rows, row, 0, count, matrix, row_of(begin), end - begin, out, y.x.dim(1), next);
  }

 private:
  RoundedFor use() const {
    RoundedFor use;
    use.add(w.w.dtype(), (tokens() - 1) % kMixedRows + 1);
    if (tokens() > kMixedRows) use.add(w.w.dtype(), kMixedRows);
    return use;
  }
};

// Bound by reading the weights: a task is a long stream, through one head after another.
void few_tokens(Context& ctx, const HeadProduct& p) {
  const Index width = p.w.part.width, all = p.heads() * width;
  const std::vector<Index> cuts = StreamCuts::of(ctx, all);
  const auto tasks = static_cast<Index>(cuts.size()) - 1;
  const auto cut = [&](Index i) { return cuts[static_cast<std::size_t>(i)]; };
  ctx.pool().run_at(
      tasks, [&](Index i) { return ctx.pool().nodes().node_of(cut(i), all); },
      [&](Index i, int worker) {
        MixedProduct product(ctx, worker, p.w.w.dim(1), 0);
        const Index next_task = i + ctx.threads();  // likely this thread's
        for (Index begin = cut(i), end = 0; begin < cut(i + 1); begin = end) {
          end = std::min(cut(i + 1), (begin / width + 1) * width);
          const Index next = end < cut(i + 1) ? end : next_task < tasks ? cut(next_task) : all;
          p.run(product, 0, p.tokens(), begin, end, next < all ? p.matrix.row(p.row_of(next)) : nullptr);
        }
      });
}

void many_tokens(Context& ctx, const HeadProduct& p) {
  const Index width = p.w.part.width, cols = std::min<Index>(width, 256), cuts = (width + cols - 1) / cols;
  const Index blocks = (p.tokens() + kMixedRows - 1) / kMixedRows, tasks = p.heads() * cuts;
  ctx.pool().run(blocks * tasks, [&](Index task, int worker) {
    MixedProduct product(ctx, worker, p.w.w.dim(1), 0);
    const Index first = task / tasks * kMixedRows, head = task % tasks / cuts;
    const Index begin = head * width + task % cuts * cols, end = std::min(begin + cols, (head + 1) * width);
    p.run(product, first, std::min(kMixedRows, p.tokens() - first), begin, end, nullptr);
  });
}

}  // namespace

void head_linear_mixed(Context& ctx, const HeadNumbers& x, const HeadRows& w, HeadNumbers& y) {
  if (x.x.dim(0) == 0 || w.part.width == 0) return;
  const HeadProduct product(ctx, x, w, y);
  streams(w.w.dtype(), product.tokens()) ? few_tokens(ctx, product) : many_tokens(ctx, product);
}

}  // namespace dsmoe::ops::cpu
