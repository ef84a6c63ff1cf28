#include "ops/cpu/mixed_product.h"

#include <algorithm>

#include "ops/cpu/product.h"
#include "ops/cpu/tasks.h"

namespace dsmoe::cpu {

namespace {

constexpr Index kWideCols = 32;  // weight rows that are widened at a time

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

MixedRows::MixedRows(Context& ctx, const float* x, Index rows, Index k, bool quantize) : x_(x), k_(k) {
  if (!quantize || rows == 0) return;
  const Index chunks = activation_chunks(k);
  memory_ = Tensor(DType::kU8, {rows * chunks * static_cast<Index>(sizeof(Activations))});
  auto* const to = static_cast<Activations*>(memory_.raw_mutable());
  const auto quantize_row = kernels().quant->quantize;
  constexpr Index kRowsPerTask = 8;  // waking a thread costs more than fewer
  each_block(ctx, rows, kRowsPerTask, [&](Index first, Index last, int) {
    for (Index r = first; r < last; ++r) quantize_row(k, x + r * k, to + r * chunks);
  });
}

Index mixed_columns_per_task(const Context& ctx, Index n) {
  const Index panel = kernels().quant->nr, wanted = n / (16 * ctx.threads());
  return std::clamp<Index>(wanted / panel * panel, panel, 256);
}

MixedProduct::MixedProduct(Context& ctx, int worker, Index k, Index extra) : kt_(kernels()) {
  const std::size_t panel = static_cast<std::size_t>(kt_.quant->panel_bytes(k / kQuantBlock));
  const std::size_t wide = rounded(product_scratch(kt_)) + static_cast<std::size_t>(kWideCols * k) * sizeof(float);
  const std::size_t own = rounded(static_cast<std::size_t>(extra) * sizeof(float));
  auto* const base = static_cast<char*>(ctx.scratch(worker, own + std::max(panel, wide)));
  extra_ = reinterpret_cast<float*>(base);
  memory_ = base + own;
}

void MixedProduct::run(const MixedRows& rows, const std::int32_t* row, Index first_row, Index m, const MixedMatrix& w,
                       Index col, Index n, float* c, Index ldc, const char* next) {
  const auto number = [=](Index i) { return row ? row[i] : first_row + i; };
  if (is_quantized(w.dtype)) {
    const Activations* list[kMixedRows];
    for (Index i = 0; i < m; ++i) list[i] = rows.quantized(number(i));
    quantized(list, m, rows.k(), w, col, n, c, ldc, next);
  } else {
    const float* list[kMixedRows];
    for (Index i = 0; i < m; ++i) list[i] = rows.floats(number(i));
    widened(list, m, rows.k(), w, col, n, c, ldc);
  }
}

void MixedProduct::quantized(const Activations* const* rows, Index m, Index k, const MixedMatrix& w, Index col, Index n,
                             float* c, Index ldc, const char* next) {
  const QuantKernels& q = *kt_.quant;
  const QuantType& type = q.type[static_cast<int>(w.dtype) - static_cast<int>(DType::kQ8_0)];
  const Index blocks = k / kQuantBlock;
  if (m <= kQuantFewRows) return type.few(blocks, rows, static_cast<int>(m), w.row(col), w.row_bytes, n, c, ldc, next);
  const Index tiles = (m + q.mr - 1) / q.mr;
  // A panel's bytes are fetched while the one before is worked on, a few lines with every block.
  const Index bytes = q.nr * w.row_bytes, lines = (bytes / 64 + tiles * blocks - 1) / (tiles * blocks);
  for (Index j = 0; j < n; j += q.nr) {
    const int width = static_cast<int>(std::min<Index>(q.nr, n - j));
    type.pack(blocks, w.row(col + j), w.row_bytes, width, memory_);
    const char* const ahead = j + q.nr < n ? w.row(col + j + q.nr) : next;
    for (Index t = 0; t < tiles; ++t) {
      const Index first = m * t / tiles, last = m * (t + 1) / tiles;
      const FetchAhead fetch{ahead + t * lines * blocks * 64, ahead + bytes, ahead ? static_cast<int>(lines) : 0};
      type.tile(blocks, rows + first, static_cast<int>(last - first), memory_, c + first * ldc + j, ldc, width, fetch);
    }
  }
}

void MixedProduct::widened(const float* const* rows, Index m, Index k, const MixedMatrix& w, Index col, Index n, float* c,
                           Index ldc) {
  auto* const wide = reinterpret_cast<float*>(memory_ + rounded(product_scratch(kt_)));
  for (Index j = 0; j < n; j += kWideCols) {
    const Index width = std::min(kWideCols, n - j);
    const float* line[kWideCols];
    for (Index i = 0; i < width; ++i) {
      const auto* from = reinterpret_cast<const std::uint16_t*>(w.row(col + j + i));
      line[i] = wide + i * k;
      if (w.dtype == DType::kF32) line[i] = reinterpret_cast<const float*>(from);
      if (w.dtype == DType::kF16) kt_.quant->widen_f16(k, from, wide + i * k);
      if (w.dtype == DType::kBF16) kt_.widen(k, from, wide + i * k);
    }
    product<float>(kt_, m, width, k, {rows, Lines::kAlong}, {line, Lines::kAlong}, c + j, ldc, false, memory_);
  }
}

}  // namespace dsmoe::cpu
