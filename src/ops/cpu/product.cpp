#include "ops/cpu/product.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/product_tiles.h"

namespace dsmoe::cpu {

namespace {

// Elements of k in one block of kDepth units.
template <class T>
constexpr Index block_depth() {
  return sizeof(T) == 4 ? kDepth : 2 * kDepth;
}

// Packs elements [first, first + count) x [k0, k0 + depth) into panels of the given width, `stride` units apart;
// returns the units along k.
template <class T>
Index pack(const KernelTable& kt, Operand<T> x, Index first, Index count, Index k0, Index depth, std::uint32_t* panels,
           int width, Index stride, float* wide) {
  const T* line[kMaxLines];
  const bool along = x.lines == Lines::kAlong;
  const Index lines = along ? count : depth;
  for (Index i = 0; i < lines; ++i) line[i] = along ? x.line[first + i] + k0 : x.line[k0 + i] + first;

  if constexpr (sizeof(T) == 4) {
    if (along) {
      kt.pack_lines(reinterpret_cast<const std::uint32_t* const*>(line), count, depth, panels, width, stride);
    } else {
      kt.pack_across_f32(line, count, depth, panels, width, stride);
    }
    return depth;
  } else if (kt.bf16_dot) {
    return pack_pairs(kt, line, x.lines, count, depth, panels, width, stride);
  } else {  // no bf16 dot products: widen the lines and pack those
    const float* wide_line[kMaxLines];
    const Index length = along ? depth : count;
    for (Index i = 0; i < lines; ++i) {
      kt.widen(length, reinterpret_cast<const std::uint16_t*>(line[i]), wide + i * length);
      wide_line[i] = wide + i * length;
    }
    return pack(kt, Operand<float>{wide_line, x.lines}, 0, count, 0, depth, panels, width, stride, nullptr);
  }
}

}  // namespace

std::size_t product_scratch(const KernelTable& kt) {
  const Index panels = kMaxRows + kMaxCols + kt.nr;
  const Index wide = kt.bf16_dot ? 0 : kMaxCols;
  // Widened bf16 has twice as many units to a block.
  const Index numbers = (panels + wide) * (kt.bf16_dot ? 1 : 2) * kDepth;
  return std::max(static_cast<std::size_t>(numbers) * sizeof(std::uint32_t), kt.bf16_tiles ? tile_scratch() : 0);
}

namespace {

// One product with its fixed parts: where panels lie in the scratch, and which tile kernel runs.
template <class T>
class Product {
 public:
  Product(const KernelTable& kt, Operand<T> b, Index k, bool accumulate, void* scratch)
      : kt_(kt),
        b_(b),
        k_(k),
        accumulate_(accumulate),
        tile_(sizeof(T) == 2 && kt.bf16_dot ? kt.tile_bf16 : kt.tile_f32),
        unit_depth_(sizeof(T) == 2 && !kt.bf16_dot ? 2 * kDepth : kDepth),
        a_panels_(static_cast<std::uint32_t*>(scratch)),
        b_panel_(a_panels_ + kMaxRows * unit_depth_),
        wide_(reinterpret_cast<float*>(b_panel_ + (kMaxCols + kt.nr) * unit_depth_)) {}

  // Few rows: bound by reading b. Each line of b is read in one go, since long streams are fetched best, and
  // a is packed for all of k beforehand.
  static bool few(const KernelTable& kt, Index m, Index k) { return m <= kt.mr && m * k <= kMaxRows * kDepth; }

  void few_rows(const ProductRows<T>& x, Index n, const void* next) {
    const Index m = x.m;
    for (Index k0 = 0; k0 < k_; k0 += kBlock)
      pack(kt_, x.a, 0, m, k0, std::min(kBlock, k_ - k0), a_panels_ + m * units_before(k0), static_cast<int>(m), 0, wide_);
    const bool whole_units = sizeof(T) == 4 || (kt_.bf16_dot && k_ % 2 == 0);
    if (m <= kFewRows && whole_units && b_.lines == Lines::kAlong) return few_rows_unpacked(x, n, next);
    for (Index j = 0; j < n; j += kt_.nr) {
      const Index cols = std::min<Index>(kt_.nr, n - j);
      for (Index k0 = 0; k0 < k_; k0 += kBlock) {
        const Index units = pack(kt_, b_, j, cols, k0, std::min(kBlock, k_ - k0), b_panel_, kt_.nr, 0, wide_);
        tile_(units, a_panels_ + m * units_before(k0), static_cast<int>(m), b_panel_, x.c + j, x.ldc,
              static_cast<int>(cols), accumulate_ || k0 > 0, Runs{});
      }
    }
  }

  void few_rows_unpacked(const ProductRows<T>& x, Index n, const void* after) {
    const auto kernel = sizeof(T) == 4 ? kt_.few_f32 : kt_.few_bf16;
    const Index units = sizeof(T) == 4 ? k_ : k_ / 2;
    const auto* const* line = reinterpret_cast<const std::uint32_t* const*>(b_.line);
    for (Index j = 0; j < n; j += kt_.few_lines) {
      const Index lines = std::min<Index>(kt_.few_lines, n - j), next = j + lines;
      // The lines of a whole matrix lie one after another: what comes next is fetched as one stream.
      const bool stream = n - next >= kt_.few_lines && line[next + 1] - line[next] == units;
      kernel(units, kDepth, a_panels_, static_cast<int>(x.m), line + j, static_cast<int>(lines), x.c + j, x.ldc,
             accumulate_,
             stream      ? line[next]
             : next >= n ? after
                         : nullptr);
    }
  }

  // All rows by columns [n0, n0 + cols), which fit the panels. Every block of b is packed once, and the rows, in blocks
  // that fit theirs, run against it one after another.
  void columns(std::span<const ProductRows<T>> parts, Index n0, Index cols) {
    const Index panels = (cols + kt_.nr - 1) / kt_.nr;
    const bool across = b_.lines == Lines::kAcross, several = parts.size() > 1 || row_blocks(parts.front()) > 1;
    // Lines along k are packed one panel at a time, which is still in a near cache when its tiles run; lines across k
    // for all panels at once, since they are read best in one sweep.
    const Index stride = across || several ? kt_.nr * unit_depth_ : 0;
    for (Index k0 = 0; k0 < k_; k0 += kBlock) {
      const Index depth = std::min(kBlock, k_ - k0);
      Index units = across ? pack(kt_, b_, n0, cols, k0, depth, b_panel_, kt_.nr, stride, wide_) : 0;
      if (across) fetch_later(n0, cols, k0 + depth);
      Index number = 0;  // of the block of rows
      for (const ProductRows<T>& x : parts) {
        const Index blocks = row_blocks(x);
        for (Index i = 0; i < blocks; ++i, ++number) {
          const Index m0 = x.m * i / blocks, rows = x.m * (i + 1) / blocks - m0;
          const RowTiles tiles(rows, kt_.mr);
          pack_rows(x.a, number, m0, rows, tiles, k0, depth);
          for (Index j = 0; j < panels; ++j) {
            const Index n = n0 + j * kt_.nr, width = std::min<Index>(kt_.nr, cols - j * kt_.nr);
            if (!across && number == 0) {
              units = pack(kt_, b_, n, width, k0, depth, b_panel_ + j * stride, kt_.nr, 0, wide_);
              // The panel that comes next, and no more: rows a power of two apart share few places in a cache.
              j + 1 < panels ? fetch_later(n + kt_.nr, std::min<Index>(kt_.nr, cols - (j + 1) * kt_.nr), k0)
                             : fetch_later(n0, std::min<Index>(kt_.nr, cols), k0 + depth);
            }
            for (Index t = 0; t < tiles.count; ++t) {
              const Index first = t * tiles.height;
              tile_(units, a_panels_ + first * unit_depth_, static_cast<int>(std::min(tiles.height, rows - first)),
                    b_panel_ + j * stride, x.c + (m0 + first) * x.ldc + n, x.ldc, static_cast<int>(width),
                    accumulate_ || k0 > 0, some_runs(across ? tiles.count * (panels - j) - t : tiles.count - t));
            }
          }
        }
      }
    }
  }

 private:
  static constexpr Index kBlock = block_depth<T>();

  // Tiles of one height, but for the last, which has what is left: no very low one at the end.
  struct RowTiles {
    Index count, height;
    RowTiles(Index rows, Index most) : count((rows + most - 1) / most), height((rows + count - 1) / count) {
      count = (rows + height - 1) / height;
    }
  };

  // Blocks of even height: a low one would pack b for little work.
  static Index row_blocks(const ProductRows<T>& x) { return (x.m + kMaxRows - 1) / kMaxRows; }

  // Packs block `number` of rows, [m0, m0 + rows) of a, of the block of k at k0, unless it is there: a short k needs it
  // once for all columns.
  void pack_rows(Operand<T> a, Index number, Index m0, Index rows, const RowTiles& tiles, Index k0, Index depth) {
    if (number == packed_block_ && k0 == packed_depth_) return;
    packed_block_ = number, packed_depth_ = k0;
    const Index last = (tiles.count - 1) * tiles.height;  // the rows before the last tile
    const auto height = static_cast<int>(tiles.height);
    if (last > 0) pack(kt_, a, m0, last, k0, depth, a_panels_, height, tiles.height * unit_depth_, wide_);
    pack(kt_, a, m0 + last, rows - last, k0, depth, a_panels_ + last * unit_depth_, static_cast<int>(rows - last), 0,
         wide_);
  }

  Index units_before(Index k0) const { return k0 / kBlock * unit_depth_; }

  // Notes the memory that columns [n, n + cols) of the block at k0 will be packed from, for the tiles to fetch.
  void fetch_later(Index n, Index cols, Index k0) {
    next_run_ = runs_ = 0;
    if (k0 >= k_) return;
    const bool along = b_.lines == Lines::kAlong;
    runs_ = along ? cols : std::min(kBlock, k_ - k0);
    for (Index i = 0; i < runs_; ++i) run_[i] = along ? b_.line[n + i] + k0 : b_.line[k0 + i] + n;
  }

  // The share of what is left to fetch that falls to one of `calls` calls.
  Runs some_runs(Index calls) {
    const Index count = (runs_ - next_run_ + calls - 1) / calls;
    const Runs some{run_ + next_run_, count};
    next_run_ += count;
    return some;
  }

  const KernelTable& kt_;
  Operand<T> b_;
  Index k_;
  bool accumulate_;
  decltype(KernelTable::tile_f32) tile_;
  Index unit_depth_;
  std::uint32_t* a_panels_;
  std::uint32_t* b_panel_;
  float* wide_;
  const void* run_[kMaxLines];
  Index runs_ = 0, next_run_ = 0;
  Index packed_block_ = -1, packed_depth_ = -1;  // the block of rows that is in a_panels_
};

}  // namespace

template <class T>
void product(const KernelTable& kt, Index m, Index n, Index k, Operand<T> a, Operand<T> b, float* c, Index ldc,
             bool accumulate, void* scratch, const void* next) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (Index i = 0; i < m && !accumulate; ++i) std::memset(c + i * ldc, 0, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  const ProductRows<T> all{a, m, c, ldc};
  if constexpr (sizeof(T) == 2)
    if (kt.bf16_tiles) return product_by_tiles(kt, {&all, 1}, n, k, b, accumulate, scratch, next);
  Product<T> p(kt, b, k, accumulate, scratch);
  if (Product<T>::few(kt, m, k)) return p.few_rows(all, n, next);
  for (Index n0 = 0; n0 < n; n0 += kMaxCols) p.columns({&all, 1}, n0, std::min(kMaxCols, n - n0));
}

template <class T>
void product(const KernelTable& kt, std::span<const ProductRows<T>> parts, Index n, Index k, Operand<T> b, bool accumulate,
             void* scratch) {
  bool few = k == 0;
  for (const ProductRows<T>& x : parts) few = few || x.m == 0 || Product<T>::few(kt, x.m, k);
  if (few) {
    for (const ProductRows<T>& x : parts) product<T>(kt, x.m, n, k, x.a, b, x.c, x.ldc, accumulate, scratch);
    return;
  }
  if constexpr (sizeof(T) == 2)
    if (kt.bf16_tiles) return product_by_tiles(kt, parts, n, k, b, accumulate, scratch, nullptr);
  Product<T> p(kt, b, k, accumulate, scratch);
  for (Index n0 = 0; n0 < n; n0 += kMaxCols) p.columns(parts, n0, std::min(kMaxCols, n - n0));
}

template void product(const KernelTable&, Index, Index, Index, Operand<float>, Operand<float>, float*, Index, bool, void*,
                      const void*);
template void product(const KernelTable&, Index, Index, Index, Operand<BFloat16>, Operand<BFloat16>, float*, Index, bool,
                      void*, const void*);
template void product(const KernelTable&, std::span<const ProductRows<float>>, Index, Index, Operand<float>, bool, void*);
template void product(const KernelTable&, std::span<const ProductRows<BFloat16>>, Index, Index, Operand<BFloat16>, bool,
                      void*);

void to_f32(const KernelTable&, Index n, const float* x, float* y) {
  std::memcpy(y, x, static_cast<std::size_t>(n) * sizeof(float));
}
void to_f32(const KernelTable& kt, Index n, const BFloat16* x, float* y) {
  kt.widen(n, reinterpret_cast<const std::uint16_t*>(x), y);
}
void from_f32(const KernelTable&, Index n, const float* x, float* y) {
  std::memcpy(y, x, static_cast<std::size_t>(n) * sizeof(float));
}
void from_f32(const KernelTable& kt, Index n, const float* x, BFloat16* y) {
  kt.narrow(n, x, reinterpret_cast<std::uint16_t*>(y));
}

}  // namespace dsmoe::cpu
