#include "ops/cpu/product_tiles.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/bf16_tiles.h"

namespace dsmoe::cpu {

Index pack_pairs(const KernelTable& kt, const BFloat16* const* line, Lines lines, Index count, Index depth,
                 std::uint32_t* panels, int width, Index stride) {
  if (lines == Lines::kAlong) {
    kt.pack_lines(reinterpret_cast<const std::uint32_t* const*>(line), count, depth / 2, panels, width, stride);
    for (Index i = 0; depth % 2 != 0 && i < (count + width - 1) / width * width; ++i) {
      // The last unit has only a low half.
      panels[i / width * stride + depth / 2 * width + i % width] = i < count ? line[i][depth - 1].bits : 0u;
    }
  } else {
    kt.pack_across_bf16(reinterpret_cast<const std::uint16_t* const*>(line), count, depth, panels, width, stride);
  }
  return (depth + 1) / 2;
}

namespace {

constexpr Index kBlock = 2 * kDepth;                                      // numbers along k that are one sum
constexpr Index kBlockSteps = kBlock / kTileDepth;                        // tiles along k
constexpr Index kTileUnits = kTileLines * kTileDepth / 2;                 // 32-bit units of a whole tile
constexpr Index kGroup = 2 * kTileLines;                                  // lines that are worked on together
constexpr Index kMostColumns = 256, kPanelNumbers = 1024 * kMostColumns;  // of panels at a time: half a megabyte
constexpr Index kGroups = 12;                                             // of packed lines that are kept

// One product of lines, which are tiles where they lie, and panels, which are packed. Weights lie in lines along k, so they
// are what is not packed, and nothing but rows is, for a prompt and for a single token. Only lines across k have no tiles
// in them.
class TileProduct {
 public:
  TileProduct(const KernelTable& kt, Index k, bool accumulate, void* scratch)
      : kt_(kt),
        k_(k),
        accumulate_(accumulate),
        panels_(static_cast<std::uint32_t*>(scratch)),
        tiles_(panels_ + kPanelNumbers / 2),
        pairs_(tiles_ + kGroups * 2 * kBlockSteps * kTileUnits) {}

  static std::size_t scratch() {
    return static_cast<std::size_t>(kPanelNumbers / 2 + (kGroups * 2 + 1) * kBlockSteps * kTileUnits) *
           sizeof(std::uint32_t);
  }

  // Of every part, `rows.m` lines by `columns` columns. `turned`: the lines are the columns of c.
  void run(std::span<const ProductRows<BFloat16>> parts, Operand<BFloat16> column, Index columns, bool turned,
           const BFloat16* next) {
    // For few columns, when reading lines is all that takes time, one tile of them: what is fetched ahead lies closer.
    group_lines_ = columns <= kFewRows ? kTileLines : kGroup;
    Index groups = 0;
    for (const auto& part : parts) groups += (part.m + group_lines_ - 1) / group_lines_;
    const Index blocks = (columns + kMostColumns - 1) / kMostColumns;
    turned_ = turned;
    for (Index i = 0; i < blocks; ++i) {
      const Index first = columns * i / blocks;
      columns_ = columns * (i + 1) / blocks - first;
      width_ = std::min<Index>(columns_, 16);
      const Index width = (columns_ + width_ - 1) / width_ * width_;
      const Index most = kPanelNumbers / width / kBlock * kBlock;
      kt_.bf16_tiles->begin(static_cast<int>(width_));
      for (Index k0 = 0; k0 < k_; k0 += most) {
        pack_panels(column, first, k0, std::min(most, k_ - k0));
        // Packed lines of one block of k are kept for all columns.
        keep_ = k_ <= kBlock && groups <= kGroups;
        packed_ = i > 0 ? groups : 0;
        group_ = 0;
        for (const auto& part : parts)
          for (Index line = 0; line < part.m; line += group_lines_, ++group_)
            group(part, line, first, k0, std::min(most, k_ - k0), i + 1 == blocks ? next : nullptr);
      }
      kt_.bf16_tiles->end(sums_);
    }
  }

 private:
  // Numbers [k0, k0 + depth) of some columns. What is missing of the last 32 numbers is zero, as it is in the lines.
  void pack_panels(Operand<BFloat16> x, Index first, Index k0, Index depth) {
    const BFloat16* line[kMaxLines];
    const Index steps = (depth + kTileDepth - 1) / kTileDepth, lines = x.lines == Lines::kAlong ? columns_ : 0;
    stride_ = steps * 16 * width_;
    for (Index p = 0; p < depth; p += kBlock) {
      const Index here = std::min(kBlock, depth - p);
      for (Index i = 0; i < lines; ++i) line[i] = x.line[first + i] + k0 + p;
      for (Index i = 0; i < here && lines == 0; ++i) line[i] = x.line[k0 + p + i] + first;
      pack_pairs(kt_, line, x.lines, columns_, here, panels_ + p / 2 * width_, static_cast<int>(width_), stride_);
    }
    const Index units = (depth + 1) / 2;
    for (Index panel = 0; panel * width_ < columns_ && units < steps * 16; ++panel)
      std::fill(panels_ + panel * stride_ + units * width_, panels_ + (panel + 1) * stride_, 0u);
  }

  // Lines [first, first + group_lines_) of a part, over all blocks of the panels.
  void group(const ProductRows<BFloat16>& part, Index first, Index column, Index k0, Index depth, const BFloat16* next) {
    const Index lines = std::min(group_lines_, part.m - first);
    for (Index p = 0; p < depth; p += kBlock) {
      const Index here = std::min(kBlock, depth - p);
      TileBlock b = {};
      b.steps = (here + kTileDepth - 1) / kTileDepth;
      for (int t = 0; t < (lines > kTileLines ? 2 : 1); ++t)
        b.lines[t] =
            tile(part.a, first + t * kTileLines, std::min<Index>(kTileLines, lines - t * kTileLines), k0 + p, here, t);
      b.line_count = static_cast<int>(lines);
      b.panels = panels_ + p / 2 * width_;
      b.stride = stride_;
      b.width = static_cast<int>(width_);
      b.columns = static_cast<int>(columns_);
      b.c = turned_ ? part.c + column * part.ldc + first : part.c + first * part.ldc + column;
      b.ldc = part.ldc;
      b.turned = turned_;
      b.add = accumulate_ || k0 + p > 0;
      b.ahead = after(part, first, k0, depth, p, next);
      kt_.bf16_tiles->block(b, sums_);
    }
    if (group_ >= packed_) packed_ = group_ + 1;
  }

  // 16 lines where they lie, if they are all there, equally far apart, and end with a tile; else packed.
  TileLines tile(Operand<BFloat16> x, Index first, Index count, Index k0, Index depth, int number) {
    const auto* const* line = x.line + first;
    if (x.lines == Lines::kAlong && count == kTileLines && depth % kTileDepth == 0) {
      const auto place = [&](Index i) { return reinterpret_cast<std::intptr_t>(line[i]); };
      Index i = 1;
      while (i < kTileLines && place(i) - place(i - 1) == place(1) - place(0)) ++i;
      if (i == kTileLines) return {line[0] + k0, place(1) - place(0), 2 * kTileDepth};
    }
    std::uint32_t* const to = tiles_ + ((keep_ ? 2 * group_ : 0) + number) * kBlockSteps * kTileUnits;
    if (!keep_ || group_ >= packed_)
      x.lines == Lines::kAlong ? copy_lines(line, count, k0, depth, to) : turn_lines(x, first, count, k0, depth, to);
    return {to, 2 * kTileDepth, kTileUnits * Index{sizeof(std::uint32_t)}};
  }

  static void copy_lines(const BFloat16* const* line, Index count, Index k0, Index depth, std::uint32_t* to) {
    for (Index p = 0; p < depth; p += kTileDepth, to += kTileUnits) {
      const Index here = std::min<Index>(kTileDepth, depth - p);
      if (here < kTileDepth || count < kTileLines) std::fill_n(to, kTileUnits, 0u);
      for (Index i = 0; i < count; ++i)
        std::memcpy(to + i * kTileDepth / 2, line[i] + k0 + p, static_cast<std::size_t>(here) * sizeof(BFloat16));
    }
  }

  // Lines across k are a panel first, whose units then are turned.
  void turn_lines(Operand<BFloat16> x, Index first, Index count, Index k0, Index depth, std::uint32_t* to) {
    const BFloat16* line[kMaxLines];
    for (Index i = 0; i < depth; ++i) line[i] = x.line[k0 + i] + first;
    const Index units = pack_pairs(kt_, line, x.lines, count, depth, pairs_, kTileLines, 0);
    const Index end = (units + 15) / 16 * 16;
    std::fill(pairs_ + units * kTileLines, pairs_ + end * kTileLines, 0u);
    for (Index p = 0; p < end; p += 16, to += kTileUnits) {
      const std::uint32_t* unit[16];
      for (Index u = 0; u < 16; ++u) unit[u] = pairs_ + (p + u) * kTileLines;
      kt_.pack_lines(unit, 16, kTileLines, to, 16, 0);
    }
  }

  // What is read after a group of lines, to be fetched during its blocks: the next group, or the memory that comes after
  // all, as one stream where lines lie one after another, else block by block.
  Runs after(const ProductRows<BFloat16>& part, Index first, Index k0, Index depth, Index p, const BFloat16* next) {
    if (!turned_) return {};  // lines that are rows, and near
    const BFloat16* const* line = part.a.line + first + group_lines_;
    Index count = std::min(group_lines_, part.m - first - group_lines_), from = k0 + p;
    if (count <= 0 && k0 + depth < k_) line = part.a.line, count = std::min(group_lines_, part.m), from += depth;
    const BFloat16* const stream = count <= 0                                               ? next
                                   : depth == k_ && (count == 1 || line[1] - line[0] == k_) ? line[0]
                                                                                            : nullptr;
    if (stream) count = group_lines_;
    for (Index i = 0; i < count; ++i) run_[i] = stream ? stream + group_lines_ * p + kBlock * i : line[i] + from;
    return {run_, std::max<Index>(count, 0)};
  }

  const KernelTable& kt_;
  Index k_;
  bool accumulate_, turned_ = false;
  std::uint32_t *panels_, *tiles_, *pairs_;
  Index columns_ = 0, width_ = 0, stride_ = 0;  // of the panels
  bool keep_ = false;
  Index group_lines_ = kGroup;
  Index group_ = 0, packed_ = 0;  // the group's number, and how many are packed
  const void* run_[kGroup];
  TileSums sums_ = {};
};

}  // namespace

std::size_t tile_scratch() { return TileProduct::scratch(); }

void product_by_tiles(const KernelTable& kt, std::span<const ProductRows<BFloat16>> parts, Index n, Index k,
                      Operand<BFloat16> b, bool accumulate, void* scratch, const void* next) {
  TileProduct p(kt, k, accumulate, scratch);
  if (b.lines == Lines::kAcross) return p.run(parts, b, n, false, nullptr);
  for (const ProductRows<BFloat16>& x : parts) {
    const ProductRows<BFloat16> lines{b, n, x.c, x.ldc};
    p.run({&lines, 1}, x.a, x.m, true, static_cast<const BFloat16*>(next));
  }
}

}  // namespace dsmoe::cpu
