#include "ops/experts.h"

#include <cstring>

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

constexpr Index kManyRows = 512;

// Rows [row, row + rows) of expert e by columns [col, col + cols).
struct Task {
  Index expert, row, rows, col, cols;
};

// fn(first, count) for pieces of at most kTaskRows of the rows [begin, end), of even height.
template <class Fn>
void each_piece(Index begin, Index end, Fn fn) {
  const Index rows = end - begin, pieces = (rows + kTaskRows - 1) / kTaskRows;
  for (Index i = 0; i < pieces; ++i) fn(begin + rows * i / pieces, rows * (i + 1) / pieces - rows * i / pieces);
}

// Every expert's rows in pieces, times `width` columns cut at `cols`. Experts without rows have no task.
std::vector<Task> cut(const ExpertRows& rows, Index width, Index cols) {
  std::vector<Task> tasks;
  for (Index e = 0; e < rows.experts(); ++e)
    each_piece(rows.offset[e], rows.offset[e + 1], [&](Index row, Index count) {
      for (Index c = 0; c < width; c += cols) tasks.push_back({e, row, count, c, std::min(cols, width - c)});
    });
  return tasks;
}

template <class T>
void list_gathered(const T** line, Index count, const T* base, Index ld, const std::int32_t* row) {
  for (Index i = 0; i < count; ++i) line[i] = base + row[i] * ld;
}

template <class T>
const T* matrix(const ExpertMatrix& m) {
  return static_cast<const T*>(m.data);
}

// Of a stack of gradients, where they are written.
struct GradMatrix {
  explicit GradMatrix(const ExpertMatrix& m) : data(static_cast<float*>(const_cast<void*>(m.data))), ld(m.ld) {}
  float* data;
  Index ld;
};

// Rows that are f32 already are used where they lie; others go through a buffer.
const float* as_f32(const KernelTable&, Index, const float* x, float*) { return x; }
const float* as_f32(const KernelTable& kt, Index n, const BFloat16* x, float* buffer) {
  to_f32(kt, n, x, buffer);
  return buffer;
}
float* f32_row(float* to, float*) { return to; }
float* f32_row(BFloat16*, float* buffer) { return buffer; }

void store_scaled(const KernelTable& kt, Index n, float scale, float* x, float* to) { kt.scale(n, scale, x, to); }
void store_scaled(const KernelTable& kt, Index n, float scale, float* x, BFloat16* to) {
  kt.scale(n, scale, x, x);
  from_f32(kt, n, x, to);
}

// fn(workspace, expert, row, rows, col, cols) for every expert's rows in order, once per block of columns of
// the model width: one task owns a block of columns of all tokens, so it may add to them without any lock and
// always in the same order.
template <class T, class Begin, class Fn, class End>
void by_model_columns(Context& ctx, const ExpertRows& rows, Index width, Index lines_b, Begin begin, Fn fn, End end) {
  const KernelTable& kt = kernels();
  // The rows are packed again for every block of columns, so there are no more of them than threads, unless the rows are
  // few: then reading the weights is the work, and more tasks share it out better.
  const Index cols = rows.rows() < kManyRows ? columns_per_task(ctx, kt, width) : columns_per_task(ctx, kt, 4 * width);
  ctx.pool().run((width + cols - 1) / cols, [&](Index task, int worker) {
    const Index col = task * cols, here = std::min(cols, width - col);
    Workspace<T> ws(ctx, worker, kt, kTaskRows, lines_b);
    begin(col, here);
    for (Index e = 0; e < rows.experts(); ++e)
      each_piece(rows.offset[e], rows.offset[e + 1], [&](Index row, Index count) {
        fn(kt, ws, Task{e, row, count, col, here});
      });
    end(kt, col, here);
  });
}

}  // namespace

void experts_gate_up(Context& ctx, const Experts& w, const ExpertRows& rows, const Tensor& x, Tensor& h,
                     ExpertActivations* keep) {
  const KernelTable& kt = kernels();
  const Index width = w.width(0), depth = w.model_width();
  const std::vector<Task> tasks = cut(rows, width, kMaxCols / 2);
  dispatch(w.dtype(), [&]<class T>(T) {
    T* const h_out = h.data<T>();
    T* const kept = keep ? keep->gate_up.data<T>() : nullptr;
    const auto node = [&](Index i) { return ctx.pool().nodes().node_of(tasks[static_cast<std::size_t>(i)].col, width); };
    ctx.pool().run_at(static_cast<Index>(tasks.size()), node, [&](Index i, int worker) {
      const Task& t = tasks[static_cast<std::size_t>(i)];
      const ExpertMatrix wg = w.gate_matrix(t.expert), wu = w.up_matrix(t.expert);
      Workspace<T> ws(ctx, worker, kt, kTaskRows, kMaxCols);
      list_gathered(ws.a, t.rows, x.data<T>(), depth, rows.token.data() + t.row);
      // The columns of one product are the gate's rows and then the up projection's, so x is packed once for both.
      list_lines(ws.b, t.cols, matrix<T>(wg) + t.col * wg.ld, wg.ld);
      list_lines(ws.b + t.cols, t.cols, matrix<T>(wu) + t.col * wu.ld, wu.ld);
      // Threads take tasks in turns: this one's next is likely the one that lies ctx.threads() further on.
      const auto next = static_cast<std::size_t>(i + ctx.threads());
      const T* const after =
          next < tasks.size() ? matrix<T>(w.gate_matrix(tasks[next].expert)) + tasks[next].col * depth : nullptr;
      product<T>(kt, t.rows, 2 * t.cols, depth, {ws.a, Lines::kAlong}, {ws.b, Lines::kAlong}, ws.block, 2 * t.cols, false,
                 ws.panels, after);
      for (Index r = 0; r < t.rows; ++r) {
        float* gate = ws.block + r * 2 * t.cols;
        float* up = gate + t.cols;
        const Index to = (t.row + r) * width + t.col;
        if constexpr (sizeof(T) == 2) {  // rounded to storage before use, as backward will see them
          T rounded[kMaxCols];
          from_f32(kt, 2 * t.cols, gate, rounded);
          to_f32(kt, 2 * t.cols, rounded, gate);
        }
        if (keep) {
          T* const row = kept + (t.row + r) * 2 * width + t.col;
          from_f32(kt, t.cols, gate, row);
          from_f32(kt, t.cols, up, row + width);
        }
        float* const h_row = f32_row(h_out + to, gate);
        kt.swiglu(t.cols, gate, up, h_row);
        if constexpr (sizeof(T) == 2) from_f32(kt, t.cols, h_row, h_out + to);
      }
    });
  });
}

void experts_down_combine(Context& ctx, const Experts& w, const ExpertRows& rows, const Tensor& h, Tensor& y) {
  const Index width = w.width(0), model = w.model_width();
  dispatch(w.dtype(), [&]<class T>(T) {
    Tensor sums = y.dtype() == DType::kF32 ? y : Tensor(DType::kF32, y.shape());
    float* const sum = sums.data<float>();
    T* const out = sizeof(T) == 2 && y.dtype() == DType::kF32 ? nullptr : y.data<T>();  // null: the sums are the result
    by_model_columns<T>(
        ctx, rows, model, kMaxCols,
        [&](Index col, Index cols) {
          for (Index t = 0; t < rows.tokens; ++t) std::memset(sum + t * model + col, 0, static_cast<std::size_t>(cols) * 4);
        },
        [&](const KernelTable& kt, Workspace<T>& ws, const Task& t) {
          const ExpertMatrix wd = w.down_matrix(t.expert);
          list_lines(ws.a, t.rows, h.data<T>() + t.row * width, width);
          list_lines(ws.b, t.cols, matrix<T>(wd) + t.col * wd.ld, wd.ld);
          Index next = t.expert + 1;  // with rows
          while (next < rows.experts() && rows.offset[next] == rows.offset[next + 1]) ++next;
          const ExpertMatrix after = next < rows.experts() ? w.down_matrix(next) : ExpertMatrix{};
          product<T>(kt, t.rows, t.cols, width, {ws.a, Lines::kAlong}, {ws.b, Lines::kAlong}, ws.block, t.cols, false,
                     ws.panels, after.data ? matrix<T>(after) + t.col * after.ld : nullptr);
          for (Index r = 0; r < t.rows; ++r) {
            const auto row = static_cast<std::size_t>(t.row + r);
            kt.add_scaled(t.cols, rows.weight[row], ws.block + r * t.cols, sum + rows.token[row] * model + t.col);
          }
        },
        [&](const KernelTable& kt, Index col, Index cols) {
          if constexpr (sizeof(T) == 2)
            for (Index t = 0; out != nullptr && t < rows.tokens; ++t)
              from_f32(kt, cols, sum + t * model + col, out + t * model + col);
        });
  });
}

// d.gate_up may be kept.gate_up: a task reads its part of a row before it writes there.
void experts_down_backward(Context& ctx, const Experts& w, const ExpertRows& rows, const Tensor& dy,
                           const ExpertActivations& kept, ExpertRowGrads& d) {
  const KernelTable& kt = kernels();
  const Index width = w.width(0), model = w.model_width();
  const std::vector<Task> tasks = cut(rows, width, kMaxCols);
  const Index pieces = (width + kMaxCols - 1) / kMaxCols;
  std::vector<float> partial(static_cast<std::size_t>(pieces * rows.rows()));  // of <e, h>, a piece per block of F
  dispatch(w.dtype(), [&]<class T>(T) {
    T *const gate_up = d.gate_up.data<T>(), *const scaled_h = d.scaled_h.data<T>();
    ctx.pool().run(static_cast<Index>(tasks.size()), [&](Index i, int worker) {
      const Task& t = tasks[static_cast<std::size_t>(i)];
      const ExpertMatrix wd = w.down_matrix(t.expert);
      Workspace<T> ws(ctx, worker, kt, kTaskRows, model);
      list_gathered(ws.a, t.rows, dy.data<T>(), model, rows.token.data() + t.row);
      list_lines(ws.b, model, matrix<T>(wd) + t.col, wd.ld);
      product<T>(kt, t.rows, t.cols, model, {ws.a, Lines::kAlong}, {ws.b, Lines::kAcross}, ws.block, t.cols, false,
                 ws.panels);
      for (Index r = 0; r < t.rows; ++r) {
        const Index row = t.row + r, at = row * width + t.col;
        const float scale = rows.weight[static_cast<std::size_t>(row)];
        const float* dh = ws.block + r * t.cols;
        float gate[kMaxCols], up[kMaxCols], h[kMaxCols];
        const T* const kept_row = kept.gate_up.data<T>() + row * 2 * width + t.col;
        const float* const kept_gate = as_f32(kt, t.cols, kept_row, gate);
        const float* const kept_up = as_f32(kt, t.cols, kept_row + width, up);
        kt.swiglu_backward(t.cols, kept_gate, kept_up, dh, gate, up, h);
        partial[static_cast<std::size_t>(t.col / kMaxCols * rows.rows() + row)] = kt.dot(t.cols, dh, h);
        T* const to = gate_up + row * 2 * width + t.col;
        store_scaled(kt, t.cols, scale, gate, to);
        store_scaled(kt, t.cols, scale, up, to + width);
        store_scaled(kt, t.cols, scale, h, scaled_h + at);
      }
    });
  });
  float* const row_weight = d.weight.data<float>();
  for (Index r = 0; r < rows.rows(); ++r) {
    double sum = 0;
    for (Index p = 0; p < pieces; ++p) sum += partial[static_cast<std::size_t>(p * rows.rows() + r)];
    row_weight[r] = static_cast<float>(sum);
  }
}

void experts_gate_up_backward(Context& ctx, const Experts& w, const ExpertRows& rows, const ExpertRowGrads& d, Tensor& dx) {
  const Index width = w.width(0), model = w.model_width();
  float* const sum = dx.data<float>();
  dispatch(w.dtype(), [&]<class T>(T) {
    by_model_columns<T>(
        ctx, rows, model, std::max(2 * width, kMaxCols), [](Index, Index) {},
        [&](const KernelTable& kt, Workspace<T>& ws, const Task& t) {
          const ExpertMatrix gate = w.gate_matrix(t.expert), up = w.up_matrix(t.expert);
          list_lines(ws.a, t.rows, d.gate_up.data<T>() + t.row * 2 * width, 2 * width);
          list_lines(ws.b, width, matrix<T>(gate) + t.col, gate.ld);
          list_lines(ws.b + width, width, matrix<T>(up) + t.col, up.ld);
          product<T>(kt, t.rows, t.cols, 2 * width, {ws.a, Lines::kAlong}, {ws.b, Lines::kAcross}, ws.block, t.cols, false,
                     ws.panels);
          for (Index r = 0; r < t.rows; ++r) {
            const Index token = rows.token[static_cast<std::size_t>(t.row + r)];
            kt.add_scaled(t.cols, 1.0f, ws.block + r * t.cols, sum + token * model + t.col);
          }
        },
        [](const KernelTable&, Index, Index) {});
  });
}

void experts_weight_backward(Context& ctx, const ExpertRows& rows, const Tensor& x, const Tensor& dy,
                             const ExpertRowGrads& d, Experts& grads) {
  const KernelTable& kt = kernels();
  const Index width = d.scaled_h.dim(1), model = x.dim(1);
  // A task: some rows of the gradients of one expert's gate and up matrices, which share x, or of its down matrix. The
  // sum runs over the expert's rows.
  struct WeightTask {
    std::size_t expert;
    bool down;
    Index first, count;
  };
  std::vector<WeightTask> tasks;
  Index most_rows = 0;
  for (Index e = 0; e < rows.experts(); ++e) {
    const Index n = rows.offset[static_cast<std::size_t>(e) + 1] - rows.offset[static_cast<std::size_t>(e)];
    most_rows = std::max(most_rows, n);
    for (const bool down : {false, true}) {
      const Index all = down ? model : width, most = down ? 2 * kMaxRows : kMaxRows;
      for (Index first = 0; n > 0 && first < all; first += most)
        tasks.push_back({static_cast<std::size_t>(e), down, first, std::min(most, all - first)});
    }
  }
  dispatch(x.dtype(), [&]<class T>(T) {
    ctx.pool().run(static_cast<Index>(tasks.size()), [&](Index i, int worker) {
      const WeightTask& t = tasks[static_cast<std::size_t>(i)];
      const Index row = rows.offset[t.expert], n = rows.offset[t.expert + 1] - row;
      Workspace<T> ws(ctx, worker, kt, 2 * most_rows, most_rows);
      // gate, up: dW[f, c] += sum_r d[r, f] x[token[r], c];  down: dW[c, f] += sum_r dy[token[r], c] scaled_h[r, f]
      if (t.down) {
        const GradMatrix g(grads.down_matrix(static_cast<Index>(t.expert)));
        list_gathered(ws.a, n, dy.data<T>() + t.first, model, rows.token.data() + row);
        list_lines(ws.b, n, d.scaled_h.data<T>() + row * width, width);
        product<T>(kt, t.count, width, n, {ws.a, Lines::kAcross}, {ws.b, Lines::kAcross}, g.data + t.first * g.ld, g.ld,
                   true, ws.panels);
        return;
      }
      const GradMatrix gate(grads.gate_matrix(static_cast<Index>(t.expert)));
      const GradMatrix up(grads.up_matrix(static_cast<Index>(t.expert)));
      const T** const second = ws.a + n;
      list_lines(ws.a, n, d.gate_up.data<T>() + row * 2 * width + t.first, 2 * width);
      list_lines(second, n, d.gate_up.data<T>() + row * 2 * width + width + t.first, 2 * width);
      list_gathered(ws.b, n, x.data<T>(), model, rows.token.data() + row);
      const ProductRows<T> both[] = {{{ws.a, Lines::kAcross}, t.count, gate.data + t.first * gate.ld, gate.ld},
                                     {{second, Lines::kAcross}, t.count, up.data + t.first * up.ld, up.ld}};
      product<T>(kt, both, model, n, {ws.b, Lines::kAcross}, true, ws.panels);
    });
  });
}

}  // namespace dsmoe::ops::cpu
