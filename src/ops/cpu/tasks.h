// How an op's work is cut into tasks for the threads. The cut may depend on the number of threads, the bits may not.
#pragma once

#include <algorithm>
#include <vector>

#include "core/threads.h"
#include "dsmoe/context.h"
#include "ops/cpu/product.h"

namespace dsmoe::cpu {

// Columns per task so that every thread gets a few tasks: whole tiles, at most what a product packs at a time.
inline Index columns_per_task(const Context& ctx, const KernelTable& kt, Index n) {
  const Index wanted = n / (4 * ctx.threads());
  return std::clamp<Index>((wanted + kt.nr - 1) / kt.nr * kt.nr, kt.nr, kMaxCols);
}

// Rows per task of ops that treat each row on its own.
inline constexpr Index kTokensPerTask = 32;
// Columns per task of ops that sum over rows.
inline constexpr Index kColumnsPerTask = 128;

// fn(first, last, worker) for every block of `size` of the n items; the cut does not depend on the threads.
template <class Fn>
void each_block(Context& ctx, Index n, Index size, Fn fn) {
  ctx.pool().run((n + size - 1) / size,
                 [&](Index block, int worker) { fn(block * size, std::min(n, (block + 1) * size), worker); });
}

// A worker's memory for one task: the product's panels, an f32 block, and lists of lines for both operands.
template <class T>
struct Workspace {
  void* panels;
  float* block;  // kTaskRows x kMaxCols
  const T** a;
  const T** b;

  Workspace(Context& ctx, int worker, const KernelTable& kt, Index lines_a, Index lines_b) {
    const std::size_t panel_bytes = (product_scratch(kt) + 63) / 64 * 64;
    const std::size_t block_bytes = kTaskRows * kMaxCols * sizeof(float);
    const std::size_t line_bytes = static_cast<std::size_t>(lines_a + lines_b) * sizeof(T*);
    auto* base = static_cast<char*>(ctx.scratch(worker, panel_bytes + block_bytes + line_bytes));
    panels = base;
    block = reinterpret_cast<float*>(base + panel_bytes);
    a = reinterpret_cast<const T**>(base + panel_bytes + block_bytes);
    b = a + lines_a;
  }
};

// line[i] = base + i * ld
template <class T>
void list_lines(const T** line, Index count, const T* base, Index ld) {
  for (Index i = 0; i < count; ++i) line[i] = base + i * ld;
}

}  // namespace dsmoe::cpu
