// The grouped products with f32 rows and matrices in a file's own dtypes, which may differ from matrix to matrix.
#include <array>
#include <cstring>

#include "ops/cpu/mixed_product.h"
#include "ops/cpu/tasks.h"
#include "ops/mixed.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

MixedMatrix mixed(const ExpertMatrix& m) {
  return {static_cast<const char*>(m.data), m.dtype, static_cast<Index>(row_bytes(m.dtype, m.ld))};
}

std::size_t z(Index i) { return static_cast<std::size_t>(i); }

// Rows [row, row + rows) of expert e by columns [col, col + cols).
struct Task {
  Index expert, row, rows, col, cols;
};

// fn(first, count) for pieces of at most kMixedRows of the rows [begin, end), of even height.
template <class Fn>
void each_piece(Index begin, Index end, Fn fn) {
  const Index rows = end - begin, pieces = (rows + kMixedRows - 1) / kMixedRows;
  for (Index i = 0; i < pieces; ++i) fn(begin + rows * i / pieces, rows * (i + 1) / pieces - rows * i / pieces);
}

// How the rows of an expert are used in products with matrices of this type.
void add_use(RoundedFor& use, const ExpertRows& rows, Index expert, DType weights) {
  each_piece(rows.offset[z(expert)], rows.offset[z(expert) + 1], [&](Index, Index count) { use.add(weights, count); });
}

std::vector<Index> used_experts(const ExpertRows& rows) {
  std::vector<Index> used;
  for (Index e = 0; e < rows.experts(); ++e)
    if (rows.offset[z(e) + 1] > rows.offset[z(e)]) used.push_back(e);
  return used;
}

// Few rows go straight through a task's columns; for many, one panel's worth of both matrices is finished at a time.
Index columns_at_a_time(bool straight, Index cols) { return straight ? cols : std::min(cols, wide_panel()); }

}  // namespace

void experts_gate_up_mixed(Context& ctx, const Experts& w, const ExpertRows& rows, const Tensor& x, Tensor& h) {
  const KernelTable& kt = kernels();
  RoundedFor use;
  for (Index e = 0; e < w.count(); ++e)
    for (const DType type : {w.gate_matrix(e).dtype, w.up_matrix(e).dtype}) add_use(use, rows, e, type);
  const MixedRows in(ctx, x.data<float>(), rows.tokens, w.model_width(), use);
  std::vector<Task> tasks;
  std::vector<Index> h_at;  // where an expert's rows begin in h
  Index numbers = 0, most_cols = 0, columns = 0;
  const auto count_of = [&](Index e) { return rows.offset[z(e) + 1] - rows.offset[z(e)]; };
  const auto straight = [&](Index e, Index count) {
    return streams(w.gate_matrix(e).dtype, count) && streams(w.up_matrix(e).dtype, count);
  };
  const std::vector<Index> used = used_experts(rows);
  bool few = true;
  for (const Index e : used) {
    each_piece(0, count_of(e), [&](Index, Index) { columns += w.width(e); });
    few = few && straight(e, count_of(e));
  }
  StreamCuts cuts(ctx, columns, few);
  for (Index e = 0; e < w.count(); ++e) {
    h_at.push_back(numbers);
    const Index width = w.width(e);
    numbers += count_of(e) * width;
    each_piece(rows.offset[z(e)], rows.offset[z(e) + 1], [&](Index row, Index here) {
      for (Index c = 0; c < width; c += tasks.back().cols) {
        tasks.push_back({e, row, here, c, cuts.take(width - c)});
        most_cols = std::max(most_cols, tasks.back().cols);
      }
    });
  }
  float* const out = h.data<float>();
  const Index block = std::max(most_streamed_rows() * most_cols, kMixedRows * wide_panel());
  const auto node = [&](Index i) {
    const Task& t = tasks[static_cast<std::size_t>(i)];
    return ctx.pool().nodes().node_of(t.col, w.width(t.expert));
  };
  ctx.pool().run_at(static_cast<Index>(tasks.size()), node, [&](Index i, int worker) {
    const Task& t = tasks[static_cast<std::size_t>(i)];
    const MixedMatrix gate = mixed(w.gate_matrix(t.expert)), up = mixed(w.up_matrix(t.expert));
    MixedProduct product(ctx, worker, w.model_width(), 2 * block);
    float *const g = product.extra(), *const u = g + block;
    const std::int32_t* const token = rows.token.data() + t.row;
    const Index step = columns_at_a_time(straight(t.expert, t.rows), t.cols), last = t.col + t.cols;
    // Threads take tasks in turns, so this one's next is likely the one that lies ctx.threads() further on.
    const auto next = static_cast<std::size_t>(i + ctx.threads());
    const char* after_task = nullptr;
    if (next < tasks.size()) {
      const Task& n = tasks[next];
      after_task = mixed(w.gate_matrix(n.expert)).row(n.col);
    }
    for (Index c = t.col; c < last; c += step) {
      const Index here = std::min(step, last - c);
      const char* const after = c + here < last ? gate.row(c + here) : after_task;
      product.run(in, token, 0, t.rows, gate, c, here, g, here, up.row(c));
      product.run(in, token, 0, t.rows, up, c, here, u, here, after);
      for (Index r = 0; r < t.rows; ++r)
        kt.swiglu(here, g + r * here, u + r * here,
                  out + h_at[z(t.expert)] + (t.row + r - rows.offset[z(t.expert)]) * w.width(t.expert) + c);
    }
  });
}

void experts_down_combine_mixed(Context& ctx, const Experts& w, const ExpertRows& rows, const Tensor& h, Tensor& y) {
  const KernelTable& kt = kernels();
  const Index model = w.model_width();
  // Neighbours of one width are one block of rows.
  struct Group {
    Index first;  // expert
    MixedRows rows;
  };
  const std::vector<Index> used = used_experts(rows);
  const bool few = rows.tokens <= kQuantFewRows;
  const std::vector<Index> cuts = StreamCuts::of(ctx, model, few);
  const auto tasks = static_cast<Index>(cuts.size()) - 1;
  if (few && !used.empty()) {  // where the threads will begin, while this one rounds the rows
    constexpr Index kFirstRows = 64;
    std::array<std::span<const std::byte>, ThreadPool::kMaxComing> coming;
    const MixedMatrix down = mixed(w.down_matrix(used[0]));
    const std::size_t n = std::min({coming.size(), z(ctx.threads()), z(tasks)});
    for (std::size_t i = 0; i < n; ++i)
      coming[i] = {reinterpret_cast<const std::byte*>(down.row(cuts[i])),
                   z(std::min(kFirstRows, cuts[i + 1] - cuts[i]) * down.row_bytes)};
    ctx.pool().coming_up(std::span(coming).first(n));
  }
  std::vector<Group> groups;
  std::vector<std::size_t> group_of;
  Index widest = 0;
  const float* from = h.data<float>();
  for (Index e = 0; e < w.count();) {
    const Index width = w.width(e);
    Index end = e;
    for (; end < w.count() && w.width(end) == width; ++end) group_of.push_back(groups.size());
    RoundedFor use;
    for (Index i = e; i < end; ++i) add_use(use, rows, i, w.down_matrix(i).dtype);
    const Index count = rows.offset[z(end)] - rows.offset[z(e)];
    groups.push_back({e, MixedRows(ctx, from, count, width, use)});
    from += count * width;
    widest = std::max(widest, width);
    e = end;
  }
  const Index most_cols = tasks > 0 ? cuts[1] : 0;  // the first is the widest
  const Index block_size = std::max(most_streamed_rows() * most_cols, kMixedRows * wide_panel());
  float* const sum = y.data<float>();
  // One task owns a block of columns of all tokens, so it may add to them without any lock and always in the same order.
  const auto node = [&](Index task) { return ctx.pool().nodes().node_of(cuts[static_cast<std::size_t>(task)], model); };
  ctx.pool().run_at(tasks, node, [&](Index task, int worker) {
    const auto cut = [&](Index i) { return cuts[static_cast<std::size_t>(std::min(i, tasks))]; };
    const Index col = cut(task), last = cut(task + 1), width = last - col;
    for (Index t = 0; t < rows.tokens; ++t)
      std::memset(sum + t * model + col, 0, static_cast<std::size_t>(width) * sizeof(float));
    MixedProduct product(ctx, worker, widest, block_size);
    float* const block = product.extra();
    const auto begin = [&](Index e, Index c) { return c < model ? mixed(w.down_matrix(e)).row(c) : nullptr; };
    for (std::size_t u = 0; u < used.size(); ++u) {
      const Index e = used[u];
      // After the last expert comes the next task, likely the one that lies ctx.threads() further on.
      const char* const after = u + 1 < used.size() ? begin(used[u + 1], col) : begin(used[0], cut(task + ctx.threads()));
      const Group& group = groups[group_of[z(e)]];
      const MixedMatrix down = mixed(w.down_matrix(e));
      each_piece(rows.offset[z(e)], rows.offset[z(e) + 1], [&](Index row, Index count) {
        const Index step = columns_at_a_time(streams(down.dtype, count), width);
        for (Index c = col; c < last; c += step) {
          const Index here = std::min(step, last - c);
          // Sums of different tokens lie a power of two apart, which few places of a cache can hold.
          for (Index r = 0; r < count; ++r) {
            const char* const line =
                reinterpret_cast<const char*>(sum + rows.token[static_cast<std::size_t>(row + r)] * model + c);
            for (Index at = 0; at < here * 4; at += 64) __builtin_prefetch(line + at, 1, 2);
          }
          product.run(group.rows, nullptr, row - rows.offset[z(group.first)], count, down, c, here, block, here,
                      c + here < last ? down.row(c + here) : after);
          for (Index r = 0; r < count; ++r) {
            const auto i = static_cast<std::size_t>(row + r);
            kt.add_scaled(here, rows.weight[i], block + r * here, sum + rows.token[i] * model + c);
          }
        }
      });
    }
  });
}

}  // namespace dsmoe::ops::cpu
