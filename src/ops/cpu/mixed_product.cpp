#include "ops/cpu/mixed_product.h"

#include <algorithm>
#include <chrono>

#include "ops/cpu/product.h"
#include "ops/cpu/tasks.h"
#include "ops/repacked_layout.h"

namespace dsmoe::cpu {

namespace {

constexpr Index kWideCols = 32;     // weight rows that are widened at a time
constexpr Index kPanelBlocks = 64;  // of a panel that all tiles go over before the next: 80 KB

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

const QuantType& type_of(const QuantKernels& q, DType dtype) {
  return q.type[static_cast<int>(file_type(dtype)) - static_cast<int>(DType::kQ8_0)];
}

// fn(distance) reads `bytes`. It should fetch as far ahead as this thread reads while memory answers. Memory that other
// machines share may be twice as fast in one minute as in the next: a fixed distance cost 8% to 13% in one of the two. No
// result depends on it.
template <class Fn>
void timed_stream(Index bytes, Fn fn) {
  using Clock = std::chrono::steady_clock;
  constexpr double kAnswer = 340;  // ns, under load; measured as the distance that was best over the rate
  constexpr Index kLeast = 6144, kMost = 12288, kWorthTiming = 64 << 10;
  thread_local Index distance = kLeast;
  if (bytes < kWorthTiming) return fn(distance);
  const auto begin = Clock::now();
  fn(distance);
  const std::chrono::duration<double, std::nano> time = Clock::now() - begin;
  distance = std::clamp(static_cast<Index>(static_cast<double>(bytes) / time.count() * kAnswer), kLeast, kMost);
}

}  // namespace

bool streams(DType dtype, Index rows) {
  return rows <= (is_repacked(dtype) ? kernels().quant->repacked_mr : kQuantFewRows);
}

Index most_streamed_rows() { return std::max(kQuantFewRows, kernels().quant->repacked_mr); }

void RoundedFor::add(DType weights, Index rows) {
  if (is_quantized(weights)) (streams(weights, rows) && !is_repacked(weights) ? few : many) = true;
}

MixedRows::MixedRows(Context& ctx, const float* x, Index rows, Index k, Index stride, RoundedFor use)
    : x_(x), k_(k), stride_(stride) {
  round(ctx, rows, use, [this](Index r, int) { return floats(r); });
}

MixedRows::MixedRows(Context& ctx, const BFloat16* x, Index rows, Index k, Index stride, RoundedFor use)
    : k_(k), stride_(stride) {
  round(ctx, rows, use, [&](Index r, int worker) {
    auto* const wide = static_cast<float*>(ctx.scratch(worker, static_cast<std::size_t>(k) * sizeof(float)));
    to_f32(kernels(), k, x + r * stride, wide);
    return wide;
  });
}

// row(r, worker): the numbers of row r, until it is asked for the next.
template <class Row>
void MixedRows::round(Context& ctx, Index rows, RoundedFor use, Row row) {
  if (!use.few && !use.many) return;
  const Index k = k_;
  const auto memory = [&](bool wanted, Index count, std::size_t bytes) {
    return wanted ? Tensor(DType::kU8, {rows * count * static_cast<Index>(bytes)}) : Tensor();
  };
  const Index chunks = activation_chunks(k), blocks = activation_stride(k);
  few_ = memory(use.few, chunks, sizeof(ActivationChunk));
  many_ = memory(use.many, blocks, sizeof(ActivationBlock));
  auto* const few = static_cast<ActivationChunk*>(few_.raw_mutable());
  auto* const many = static_cast<ActivationBlock*>(many_.raw_mutable());
  const auto quantize = kernels().quant->quantize;
  constexpr Index kRowsPerTask = 8;  // waking a thread costs more than fewer
  each_block(ctx, rows, kRowsPerTask, [&](Index first, Index last, int worker) {
    for (Index r = first; r < last; ++r)
      quantize(k, row(r, worker), use.few ? few + r * chunks : nullptr, use.many ? many + r * blocks : nullptr);
  });
}

Index wide_panel() { return std::max<Index>(kernels().quant->nr, ops::kRepackedRows); }

// With several memory nodes tasks are sorted by node, which a long one would not follow.
StreamCuts::StreamCuts(Context& ctx, Index columns, bool few_rows)
    : left_(columns),
      least_(few_rows ? ops::kRepackedRows : 4 * ops::kRepackedRows),
      most_(ctx.pool().nodes().count() > 1 ? 256 : std::max(columns, least_)),
      threads_(ctx.threads()) {}

Index StreamCuts::take(Index here) {
  constexpr Index kWhole = ops::kRepackedRows;
  if (round_ == 0) {
    size_ = std::clamp(left_ / (2 * threads_) / kWhole * kWhole, least_, most_);
    round_ = threads_;
  }
  --round_;
  const Index columns = std::min(size_, here);
  left_ -= columns;
  return columns;
}

std::vector<Index> StreamCuts::of(Context& ctx, Index n, bool few_rows) {
  StreamCuts streams(ctx, n, few_rows);
  std::vector<Index> cuts = {0};
  while (cuts.back() < n) cuts.push_back(cuts.back() + streams.take(n - cuts.back()));
  return cuts;
}

MixedProduct::MixedProduct(Context& ctx, int worker, Index k, Index extra) : kt_(kernels()) {
  const Index blocks = k / kQuantBlock;
  const std::size_t panel = static_cast<std::size_t>(kt_.quant->panel_bytes(blocks));
  const std::size_t rows = static_cast<std::size_t>(kt_.quant->arranged_bytes(blocks, kMixedRows));
  const std::size_t wide = rounded(product_scratch(kt_)) + static_cast<std::size_t>(kWideCols * k) * sizeof(float);
  const std::size_t own = rounded(static_cast<std::size_t>(extra) * sizeof(float));
  auto* const base = static_cast<char*>(ctx.scratch(worker, own + std::max(rounded(panel) + rows, wide)));
  extra_ = reinterpret_cast<float*>(base);
  memory_ = base + own;
  arranged_ = memory_ + rounded(panel);
}

void MixedProduct::run(const MixedRows& rows, const std::int32_t* row, Index first_row, Index m, const MixedMatrix& w,
                       Index col, Index n, float* c, Index ldc, const char* next) {
  const auto number = [=](Index i) { return row ? row[i] : first_row + i; };
  if (!is_quantized(w.dtype)) {
    const float* list[kMixedRows];
    for (Index i = 0; i < m; ++i) list[i] = rows.floats(number(i));
    arranged_count_ = 0;  // they share the memory
    widened(list, m, rows.k(), w, col, n, c, ldc);
  } else if (is_repacked(w.dtype) && streams(w.dtype, m)) {
    const ActivationBlock* list[kMixedRows];
    for (Index i = 0; i < m; ++i) list[i] = rows.blocks(number(i));
    timed_stream(n * w.row_bytes, [&](Index distance) {
      type_of(*kt_.quant, w.dtype)
          .repacked(rows.k() / kQuantBlock, list, static_cast<int>(m), w.row(col), n, c, ldc, {distance, next});
    });
  } else if (streams(w.dtype, m) && !is_repacked(w.dtype)) {
    const ActivationChunk* list[kQuantFewRows];
    for (Index i = 0; i < m; ++i) list[i] = rows.chunks(number(i));
    timed_stream(n * w.row_bytes, [&](Index distance) {
      type_of(*kt_.quant, w.dtype)
          .few(rows.k() / kQuantBlock, list, static_cast<int>(m), w.row(col), w.row_bytes, n, c, ldc, {distance, next});
    });
  } else {
    const ActivationBlock* list[kMixedRows];
    for (Index i = 0; i < m; ++i) list[i] = rows.blocks(number(i));
    if (is_repacked(w.dtype) && type_of(*kt_.quant, w.dtype).repacked_tile)
      return repacked_tiles(list, m, rows.k() / kQuantBlock, w, col, n, c, ldc, next);
    many(list, m, rows.k() / kQuantBlock, w, col, n, c, ldc, next);
  }
}

const char* MixedProduct::arranged(const ActivationBlock* const* rows, Index m, Index blocks) {
  if (kt_.quant->arrange == nullptr) return nullptr;
  if (m != arranged_count_ || !std::equal(rows, rows + m, arranged_row_)) {
    kt_.quant->arrange(blocks, rows, static_cast<int>(m), arranged_);
    std::copy_n(rows, m, arranged_row_);
    arranged_count_ = m;
  }
  return arranged_;
}

void MixedProduct::repacked_tiles(const ActivationBlock* const* rows, Index m, Index blocks, const MixedMatrix& w,
                                  Index col, Index n, float* c, Index ldc, const char* next) {
  const QuantType& type = type_of(*kt_.quant, w.dtype);
  const Index tiles = (m + kRepackedTile - 1) / kRepackedTile, bytes = ops::kRepackedRows * w.row_bytes;
  const Index per_block = (bytes / 64 + tiles * blocks - 1) / (tiles * blocks);
  for (Index j = 0; j < n; j += ops::kRepackedRows) {
    const char* const next_group = j + ops::kRepackedRows < n ? w.row(col + j + ops::kRepackedRows) : next;
    FetchAhead ahead;
    if (next_group) ahead = {next_group, next_group + bytes, static_cast<int>(per_block)};
    for (Index t = 0; t < tiles; ++t) {
      const Index row = m * t / tiles, end = m * (t + 1) / tiles;
      type.repacked_tile(blocks, rows + row, static_cast<int>(end - row), w.row(col + j), c + row * ldc + j, ldc, ahead);
      if (next_group) ahead.begin += per_block * 64 * blocks;
    }
  }
}

void MixedProduct::many(const ActivationBlock* const* rows, Index m, Index blocks, const MixedMatrix& w, Index col, Index n,
                        float* c, Index ldc, const char* next) {
  const QuantKernels& q = *kt_.quant;
  const QuantType& type = type_of(q, w.dtype);
  const Index tiles = (m + q.mr - 1) / q.mr;
  // As many chains at a time as a near cache holds of a panel.
  const Index chains = std::clamp<Index>(kPanelBlocks / std::max<Index>(1, blocks / kQuantChains), 1, kQuantChains);
  // Of chains without blocks one is enough: it makes -0 a 0 as all of them do.
  const Index all_chains = std::min(kQuantChains, blocks + 1);
  // A panel's bytes are fetched while the one before is worked on, a few lines with every block.
  const Index bytes = q.nr * w.row_bytes, per_block = (bytes / 64 + tiles * blocks - 1) / (tiles * blocks);
  const ChainOrder order(blocks);
  const char* const all = arranged(rows, m, blocks);  // then there is one tile
  for (Index j = 0; j < n; j += q.nr) {
    const int width = static_cast<int>(std::min<Index>(q.nr, n - j));
    if (is_repacked(w.dtype)) {
      const Index within = (col + j) % ops::kRepackedRows;
      type.pack_repacked(blocks, w.row(col + j - within), static_cast<int>(within / 16), memory_);
    } else {
      type.pack(blocks, w.row(col + j), w.row_bytes, width, memory_);
    }
    const char* const next_panel = j + q.nr < n ? w.row(col + j + q.nr) : next;
    FetchAhead ahead;
    if (next_panel) ahead = {next_panel, next_panel + bytes, static_cast<int>(per_block)};
    for (Index first = 0; first < all_chains; first += chains) {
      const Index last = std::min(first + chains, all_chains);
      for (Index t = 0; t < tiles; ++t) {
        const Index row = m * t / tiles, end = m * (t + 1) / tiles;
        type.tile(blocks, static_cast<int>(first), static_cast<int>(last), {rows + row, all}, static_cast<int>(end - row),
                  memory_, c + row * ldc + j, ldc, width, ahead);
        if (next_panel) ahead.begin += per_block * 64 * (order.entry(last, 0) - order.entry(first, 0));
      }
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
