// A task is some rows of one head, or one head's gradient: the products of product.h over lines that begin inside rows.
#include "ops/heads.h"

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

// Where a head's part begins in row 0.
template <class T>
const T* begin_of(const HeadNumbers& n, Index head) {
  return n.x.data<T>() + head * n.dim() + n.part.first;
}
template <class T>
T* begin_of(HeadNumbers& n, Index head) {
  return n.x.data<T>() + head * n.dim() + n.part.first;
}
Index first_row(const HeadRows& w, Index head) { return head * w.rows() + w.part.first; }

// fn(head, first, last, worker) for blocks of rows of every head.
template <class Fn>
void each_head(Context& ctx, Index rows, Index heads, Index size, Fn fn) {
  const Index blocks = (rows + size - 1) / size;
  ctx.pool().run(heads * blocks, [&](Index task, int worker) {
    const Index first = task / heads * size;
    fn(task % heads, first, std::min(rows, first + size), worker);
  });
}

// c[m, n] = rows · lines across k that lie `stride` apart, where one chain is the whole sum: for few rows without packing
// the lines, which takes longer than reading them.
bool mixes_lines(const KernelTable& kt, DType dtype, Index m, Index k) {
  return m <= kFewRows && k <= kDepth && (dtype == DType::kF32 || (kt.bf16_tiles == nullptr && k % 2 == 0));
}
void mix_lines(const KernelTable& kt, Index m, Index n, Index k, const float* const* rows, const float* lines, Index stride,
               float* c, Index ldc) {
  kt.mix_lines_f32(k, rows, static_cast<int>(m), lines, stride, n, c, ldc, false, Pieces{});
}
void mix_lines(const KernelTable& kt, Index m, Index n, Index k, const BFloat16* const* rows, const BFloat16* lines,
               Index stride, float* c, Index ldc) {
  kt.mix_lines_bf16(k, reinterpret_cast<const std::uint16_t* const*>(rows), static_cast<int>(m),
                    reinterpret_cast<const std::uint16_t*>(lines), stride, n, c, ldc, false, Pieces{});
}

// y_h [T, columns] = x_h [T, inner] · W_h, whose lines lie along `inner` or across it.
template <class T>
void multiply(Context& ctx, const HeadNumbers& x, const HeadRows& w, Lines lines, HeadNumbers& y) {
  const KernelTable& kt = kernels();
  const Index k = w.w.dim(1), inner = x.part.width, columns = y.part.width, count = w.part.width;
  each_head(ctx, x.x.dim(0), w.part.heads, kMaxRows, [&](Index head, Index first, Index last, int worker) {
    const Index rows = last - first, wide = x.x.dim(1), to = y.x.dim(1);
    Workspace<T> ws(ctx, worker, kt, kMaxRows, std::max(kMaxCols, inner));
    list_lines(ws.a, rows, begin_of<T>(x, head) + first * wide, wide);
    const T* const matrix = w.w.data<T>() + first_row(w, head) * k;
    for (Index column = 0; column < columns; column += kMaxCols) {
      const Index some = std::min(kMaxCols, columns - column);
      lines == Lines::kAlong ? list_lines(ws.b, some, matrix + column * k, k) : list_lines(ws.b, count, matrix + column, k);
      T* const out = begin_of<T>(y, head) + first * to + column;
      float* sums = ws.block;
      Index stride = some;
      if constexpr (sizeof(T) == 4) sums = out, stride = to;
      if (lines == Lines::kAcross && mixes_lines(kt, x.x.dtype(), rows, inner))
        mix_lines(kt, rows, some, inner, ws.a, matrix + column, k, sums, stride);
      else
        product<T>(kt, rows, some, inner, {ws.a, Lines::kAlong}, {ws.b, lines}, sums, stride, false, ws.panels);
      for (Index r = 0; sizeof(T) == 2 && r < rows; ++r) from_f32(kt, some, sums + r * some, out + r * to);
    }
  });
}

}  // namespace

void copy_heads(Context& ctx, const HeadNumbers& from, HeadNumbers& to) {
  const KernelTable& kt = kernels();
  const Index width = from.part.width;
  dispatch(from.x.dtype(), [&]<class From>(From) {
    dispatch(to.x.dtype(), [&]<class To>(To) {
      each_block(ctx, from.x.dim(0), kTokensPerTask, [&](Index first, Index last, int) {
        for (Index t = first; t < last; ++t)
          for (Index h = 0; h < from.part.heads; ++h) {
            const From* const in = begin_of<From>(from, h) + t * from.x.dim(1);
            To* const out = begin_of<To>(to, h) + t * to.x.dim(1);
            if constexpr (sizeof(To) == 4) {
              to_f32(kt, width, in, out);
            } else if constexpr (sizeof(From) == 4) {
              from_f32(kt, width, in, out);
            } else {
              std::copy_n(in, width, out);
            }
          }
      });
    });
  });
}

void head_linear(Context& ctx, const HeadNumbers& x, const HeadRows& w, HeadNumbers& y) {
  dispatch(x.x.dtype(), [&]<class T>(T) { multiply<T>(ctx, x, w, Lines::kAlong, y); });
}

void head_linear_backward_input(Context& ctx, const HeadNumbers& dy, const HeadRows& w, HeadNumbers& dx) {
  dispatch(dy.x.dtype(), [&]<class T>(T) { multiply<T>(ctx, dy, w, Lines::kAcross, dx); });
}

void head_linear_backward_weight(Context& ctx, const HeadNumbers& dy, const HeadNumbers& x, HeadRows& dw) {
  const KernelTable& kt = kernels();
  const Index tokens = dy.x.dim(0), k = dw.w.dim(1);
  float* const out = dw.w.data<float>();
  if (tokens == 0) return;
  dispatch(dy.x.dtype(), [&]<class T>(T) {
    each_head(ctx, dw.part.width, dw.part.heads, kMaxRows, [&](Index head, Index first, Index last, int worker) {
      Workspace<T> ws(ctx, worker, kt, tokens, tokens);
      list_lines(ws.a, tokens, begin_of<T>(dy, head) + first, dy.x.dim(1));
      list_lines(ws.b, tokens, begin_of<T>(x, head), x.x.dim(1));
      product<T>(kt, last - first, k, tokens, {ws.a, Lines::kAcross}, {ws.b, Lines::kAcross},
                 out + (first_row(dw, head) + first) * k, k, true, ws.panels);
    });
  });
}

}  // namespace dsmoe::ops::cpu
