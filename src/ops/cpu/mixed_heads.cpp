// head_linear() with matrices in other dtypes than the numbers. A row of a product is what one head has of a token.
#include <vector>

#include "ops/cpu/mixed_product.h"
#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"
#include "ops/elementwise.h"
#include "ops/mixed.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

constexpr Index kColumns = 64;  // of many tokens, whose sums stay in the nearest cache until they are put in their places

RoundedFor use_of(const HeadNumbers& x, const HeadRows& w) {
  const Index tokens = x.x.dim(0);
  RoundedFor use;
  use.add(w.w.dtype(), (tokens - 1) % kMixedRows + 1);
  if (tokens > kMixedRows) use.add(w.w.dtype(), kMixedRows);
  return use;
}

template <class T>
MixedRows rows_of(Context& ctx, const HeadNumbers& x, const HeadRows& w) {
  return {ctx, x.x.data<T>() + x.part.first, x.x.dim(0) * x.part.heads, w.w.dim(1), x.dim(), use_of(x, w)};
}

// Row t * heads + h is head h of token t.
struct HeadProduct {
  const HeadRows& w;
  HeadNumbers& y;
  MixedMatrix matrix;
  MixedRows rows;

  HeadProduct(const HeadRows& weights, HeadNumbers& to, MixedRows from)
      : w(weights),
        y(to),
        matrix{static_cast<const char*>(w.w.raw()), w.w.dtype(), static_cast<Index>(row_bytes(w.w.dtype(), w.w.dim(1)))},
        rows(std::move(from)) {}

  Index tokens() const { return y.x.dim(0); }
  Index heads() const { return w.part.heads; }
  Index columns() const { return heads() * w.part.width; }  // of all heads' results, one head's after the other's
  const char* row_of(Index column) const { return matrix.row(row_number(column)); }
  Index row_number(Index column) const { return column / w.part.width * w.rows() + w.part.first + column % w.part.width; }

  // Columns [begin, end), all of one head, for the tokens [first, first + count), by way of `sums` [count, end - begin];
  // `next` is what will be read afterwards.
  void run(MixedProduct& product, Index first, Index count, Index begin, Index end, float* sums, const char* next) const {
    const Index head = begin / w.part.width, n = end - begin, stride = y.x.dim(1);
    std::int32_t row[kMixedRows];
    for (Index i = 0; i < count; ++i) row[i] = static_cast<std::int32_t>((first + i) * heads() + head);
    product.run(rows, row, 0, count, matrix, row_number(begin), n, sums, n, next);
    dispatch(y.x.dtype(), [&]<class T>(T) {
      T* const to = y.x.data<T>() + first * stride + head * y.dim() + y.part.first + begin % w.part.width;
      for (Index i = 0; i < count; ++i) from_f32(kernels(), n, sums + i * n, to + i * stride);
    });
  }
};

// Bound by reading the weights: a task is a long stream, through one head after another.
void few_tokens(Context& ctx, const HeadProduct& p) {
  const Index width = p.w.part.width, all = p.columns();
  const std::vector<Index> cuts = StreamCuts::of(ctx, all, true);
  const auto tasks = static_cast<Index>(cuts.size()) - 1;
  const auto cut = [&](Index i) { return cuts[static_cast<std::size_t>(i)]; };
  ctx.pool().run_at(
      tasks, [&](Index i) { return ctx.pool().nodes().node_of(cut(i), all); },
      [&](Index i, int worker) {
        MixedProduct product(ctx, worker, p.w.w.dim(1), most_streamed_rows() * width);
        const Index next_task = i + ctx.threads();  // likely this thread's
        for (Index begin = cut(i), end = 0; begin < cut(i + 1); begin = end) {
          end = std::min(cut(i + 1), (begin / width + 1) * width);
          const Index next = end < cut(i + 1) ? end : next_task < tasks ? cut(next_task) : all;
          p.run(product, 0, p.tokens(), begin, end, product.extra(), next < all ? p.row_of(next) : nullptr);
        }
      });
}

void many_tokens(Context& ctx, const HeadProduct& p) {
  const Index width = p.w.part.width, blocks = (p.tokens() + kMixedRows - 1) / kMixedRows;
  ctx.pool().run(blocks * p.heads(), [&](Index task, int worker) {
    MixedProduct product(ctx, worker, p.w.w.dim(1), kMixedRows * kColumns);
    const Index first = task / p.heads() * kMixedRows, begin = task % p.heads() * width;
    for (Index c = 0; c < width; c += kColumns)
      p.run(product, first, std::min(kMixedRows, p.tokens() - first), begin + c, begin + std::min(width, c + kColumns),
            product.extra(), c + kColumns < width ? p.row_of(begin + c + kColumns) : nullptr);
  });
}

}  // namespace

void head_linear_mixed(Context& ctx, const HeadNumbers& x, const HeadRows& w, HeadNumbers& y) {
  if (x.x.dim(0) == 0 || w.part.width == 0) return;
  // Matrices that are no blocks are widened, and their rows are f32 as they are.
  const HeadNumbers in{is_quantized(w.w.dtype()) ? x.x : converted(ctx, x.x, DType::kF32), x.part};
  dispatch(in.x.dtype(), [&]<class T>(T) {
    const HeadProduct product(w, y, rows_of<T>(ctx, in, w));
    streams(w.w.dtype(), product.tokens()) ? few_tokens(ctx, product) : many_tokens(ctx, product);
  });
}

}  // namespace dsmoe::ops::cpu
