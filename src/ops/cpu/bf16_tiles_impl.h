// The kernels of bf16_tiles.h for AMX. A pair of tiles of lines meets a pair of panels: four tiles of sums, four tile loads
// of 8 cycles and four products of 16 in a step (from Intel's tables: no such processor was measured), so that products
// bind. The sums of one such round, 1024 cycles, are turned and stored during the next: about 400 instructions, none of
// which the tile unit waits for.
// (No include guard: included once, inside the namespace of target_amx.cpp, after simd_avx512.h and amx.h.)

// One of the pending sums to where it belongs.
void put_away(const TileSums& pending, int number) {
  const TileSums::Place& to = pending.place[number];
  V row[kTileLines];
  for (int i = 0; i < kTileLines; ++i) row[i] = Simd::load(pending.sum[number][i]);
  if (to.turned) Simd::transpose(row);
  const int rows = to.turned ? to.columns : to.lines, length = to.turned ? to.lines : to.columns;
  float* c = to.c;
  for (int i = 0; i < rows; ++i, c += to.ldc) {
    if (length == 16)
      Simd::store(c, to.add ? Simd::add(Simd::load(c), row[i]) : row[i]);
    else
      Simd::store_n(c, to.add ? Simd::add(Simd::load_n(c, length), row[i]) : row[i], length);
  }
}

// Fetches Runs in equal shares.
struct RunFetcher {
  Runs left;
  Index share, line = 0;  // cache lines per step; line of the run

  RunFetcher(Runs runs, Index steps) : left(runs), share((runs.count * kRunLines + steps - 1) / steps) {}
  void step() {
    for (Index i = 0; i < share && left.count > 0; ++i) {
      __builtin_prefetch(static_cast<const char*>(*left.begin) + 64 * line, 0, 2);
      if (++line < kRunLines) continue;
      line = 0;
      ++left.begin;
      --left.count;
    }
  }
};

// kLines tiles of lines by kPanels panels that begin at `panel`.
template <int kLines, int kPanels>
void block_of(const TileBlock& b, const std::uint32_t* panel, RunFetcher& fetcher, TileSums& pending) {
  tile_zero<0>();
  if constexpr (kPanels == 2) tile_zero<1>();
  if constexpr (kLines == 2) tile_zero<2>();
  if constexpr (kLines == 2 && kPanels == 2) tile_zero<3>();
  const auto* first = static_cast<const char*>(b.lines[0].at);
  const auto* second = static_cast<const char*>(b.lines[1].at);
  const Index row = 4 * b.width;
  int put = 0;
  for (Index s = 0; s < b.steps; ++s) {
    fetcher.step();
    tile_load<4>(first, b.lines[0].row);
    tile_load<6>(panel, row);
    tile_dot_bf16<0, 4, 6>();
    if constexpr (kPanels == 2) {
      tile_load<7>(panel + b.stride, row);
      tile_dot_bf16<1, 4, 7>();
    }
    if constexpr (kLines == 2) {
      tile_load<5>(second, b.lines[1].row);
      tile_dot_bf16<2, 5, 6>();
      if constexpr (kPanels == 2) tile_dot_bf16<3, 5, 7>();
      second += b.lines[1].step;
    }
    first += b.lines[0].step;
    panel += 16 * b.width;
    if (s % 4 == 3 && put < pending.count) put_away(pending, put++);
  }
  while (put < pending.count) put_away(pending, put++);
  tile_store<0>(pending.sum[0], 64);
  if constexpr (kPanels == 2) tile_store<1>(pending.sum[1], 64);
  if constexpr (kLines == 2) tile_store<2>(pending.sum[kPanels], 64);
  if constexpr (kLines == 2 && kPanels == 2) tile_store<3>(pending.sum[3], 64);
}

void block(const TileBlock& b, TileSums& pending) {
  const int tiles = b.line_count > kTileLines ? 2 : 1, panels = (b.columns + b.width - 1) / b.width;
  RunFetcher fetcher(b.ahead, b.steps * ((panels + 1) / 2));
  for (int p = 0; p < panels; p += 2) {
    const int here = panels - p < 2 ? 1 : 2;
    const std::uint32_t* const panel = b.panels + p * b.stride;
    if (tiles == 2)
      here == 2 ? block_of<2, 2>(b, panel, fetcher, pending) : block_of<2, 1>(b, panel, fetcher, pending);
    else
      here == 2 ? block_of<1, 2>(b, panel, fetcher, pending) : block_of<1, 1>(b, panel, fetcher, pending);
    pending.count = 0;
    for (int t = 0; t < tiles; ++t) {
      for (int i = 0; i < here; ++i) {
        const int line = kTileLines * t, column = b.width * (p + i);
        const int lines = b.line_count - line < kTileLines ? b.line_count - line : kTileLines;
        const int columns = b.columns - column < b.width ? b.columns - column : b.width;
        float* const c = b.turned ? b.c + column * b.ldc + line : b.c + line * b.ldc + column;
        pending.place[pending.count++] = {c, b.ldc, lines, columns, b.turned, b.add};
      }
    }
  }
}

void begin(int width) {
  TileConfig config;
  for (int sum = 0; sum < 4; ++sum) config.set(sum, kTileLines, 4 * width);
  config.set(4, kTileLines, 2 * kTileDepth).set(5, kTileLines, 2 * kTileDepth);
  config.set(6, kTileDepth / 2, 4 * width).set(7, kTileDepth / 2, 4 * width);
  tiles_configure(config);
}

void end(TileSums& pending) {
  for (int i = 0; i < pending.count; ++i) put_away(pending, i);
  pending.count = 0;
  tiles_release();
}

double peak_tiles(Index rounds, float* sink) {
  alignas(64) static const std::uint16_t kZeros[kTileLines][kTileDepth] = {};
  alignas(64) float sums[kTileLines][16];
  begin(16);
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  tile_load<4>(kZeros, 64), tile_load<5>(kZeros, 64), tile_load<6>(kZeros, 64), tile_load<7>(kZeros, 64);
  constexpr Index kFewer = 8;  // a round is 64 cycles instead of six
  for (Index r = 0; r < rounds; r += kFewer) {
    tile_dot_bf16<0, 4, 6>();
    tile_dot_bf16<1, 4, 7>();
    tile_dot_bf16<2, 5, 6>();
    tile_dot_bf16<3, 5, 7>();
  }
  tile_store<0>(sums, 64);
  tiles_release();
  *sink = sums[0][0];
  return 2.0 * kTileLines * 16 * kTileDepth * 4 * static_cast<double>((rounds + kFewer - 1) / kFewer);
}

const Bf16Tiles kBf16Tiles = {.begin = begin, .block = block, .end = end};
