// Tiles of quant_kernels.h by AMX: the integers come from the tile unit, by way of a small buffer, and chains and scales
// are those of quant_impl.h in AVX-512, so the bits are those of the kernels for dot products of bytes. Panels hold signed
// numbers, so that no sum needs a start.
//
// A block of 32 numbers, 16 rows and 16 columns, in cycles, from what is published of Sapphire Rapids; no such processor
// was measured:
//
//   16  the product. A tile of bytes could have 64 along k, but the next 32 have other scales: half the peak.
//   24  16 conversions, 16 products of scales and 16 multiply-adds, two of which begin at once (32 with minimums; 48, and
//       two products, with scales of half blocks), and a sixth of that where a chain of four blocks ends
//   20  stores, one at once: 16 of sums, and where a chain ends
//   26  loads, two at once: 16 of sums, 16 of rows' scales, 24 rows of tiles of which two products share 16
//
// Dot products of bytes take 64 cycles for the same, and then the same 24. So vectors and loads bind, and the tile unit
// works while they do: a batch of a chain's blocks is multiplied, all of it at once, and then the sums of the batch before
// are scaled. (Products between short runs of vectors may close one of the two ports for these.) (No include guard:
// included once, inside the namespace of quant_target_amx.cpp, after quant_pack.h and amx.h.)

constexpr int kTileRows = 16;
constexpr int kBatch = 4;  // blocks: with 16 chains, those of a chain with K up to 2048
template <Kind kKind>
constexpr int kSums = kKind == Kind::kHalves ? 2 : 1;  // products of a block

// A block of 16 rows, as tiles take it. Blocks lie in the order in which they are read: of the first chain those of the
// first rows, then of the next rows, then of the next chain.
struct alignas(64) ArrangedBlock {
  std::int8_t q[kTileRows][kQuantBlock];
  float scale[kTileRows], total[kTileRows];
};
static_assert(sizeof(ArrangedBlock) == kTileRows * (kQuantBlock + 2 * 4));

void arrange(Index blocks, const ActivationBlock* const* rows, int m, char* to) {
  auto* into = reinterpret_cast<ArrangedBlock*>(to);
  const ChainOrder order(blocks);
  for (Index chain = 0; chain < kQuantChains; ++chain) {
    const Index begin = order.entry(chain, 0), end = begin + order.steps(chain);
    for (int first = 0; first < m; first += kTileRows) {
      const int here = m - first < kTileRows ? m - first : kTileRows;
      for (Index number = begin; number < end; ++number, ++into) {
        if (here < kTileRows) __builtin_memset(into, 0, sizeof *into);
        for (int i = 0; i < here; ++i) {
          const ActivationBlock& from = rows[first + i][number];
          __builtin_memcpy(into->q[i], from.q, sizeof from.q);
          into->scale[i] = from.scale;
          into->total[i] = from.total;
        }
      }
    }
  }
}

// Some blocks of one chain, for up to 16 rows and the columns of a panel.
struct Batch {
  int blocks, rows;
  bool begins, ends, first;  // of the chain; the first chain
  const ArrangedBlock* row;
  const char* entry;  // of the panel
  float* c;
};

// What a tile works with: sums of two batches in turns, and of a chain that is longer than a batch.
template <Kind kKind>
struct alignas(64) Buffers {
  std::int32_t sum[2][kBatch][kSums<kKind>][kNv][kTileRows][16];
  float chain[kNv][kTileRows][16];
};

DSMOE_MASKED inline F load_columns(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}

// The products of one block. (Two pairs of tiles in turns: one may be stored while the other is computed.)
template <Kind kKind, int kTurn, int kPart = 0>
inline __attribute__((always_inline)) void multiply_block(const ArrangedBlock& rows, const char* entry,
                                                          std::int32_t (*sum)[kNv][kTileRows][16]) {
  constexpr int kC = 2 * ((kTurn + kPart) % 2), kUnits = 8 / kSums<kKind>;
  tile_zero<kC>();
  tile_zero<kC + 1>();
  tile_load<4>(rows.q[0] + 4 * kUnits * kPart, kQuantBlock);
  tile_load<6>(entry + kPart * kUnits * kNv * 64, kNv * 64);
  tile_dot_int8<kC, 4, 6>();
  tile_load<7>(entry + kPart * kUnits * kNv * 64 + 64, kNv * 64);
  tile_dot_int8<kC + 1, 4, 7>();
  tile_store<kC>(sum[kPart][0], 64);
  tile_store<kC + 1>(sum[kPart][1], 64);
  if constexpr (kPart + 1 < kSums<kKind>) multiply_block<kKind, kTurn, kPart + 1>(rows, entry, sum);
}

// One block's sums of 16 columns, times the scales.
template <Kind kKind, int M>
inline __attribute__((always_inline)) void scale_block(const ArrangedBlock& rows, const char* entry, int vector,
                                                       const std::int32_t (*sum)[kNv][kTileRows][16], F* chain) {
  const auto* scales = reinterpret_cast<const float*>(entry + kNr * kQuantBlock) + 16 * vector;
#pragma GCC unroll 2
  for (int part = 0; part < kSums<kKind>; ++part) {
    const F scale = Simd::load(scales + part * kNr);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
      chain[i] = Simd::fma(Simd::to_float(Simd::load_ints(sum[part][vector][i])),
                           Simd::mul(scale, Simd::set(rows.scale[i])), chain[i]);
  }
  if constexpr (kKind == Kind::kMinimum) {
    const F minimum = Simd::load(scales + kNr);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) chain[i] = Simd::fnma(minimum, Simd::set(rows.total[i]), chain[i]);
  }
}

// Adds a chain to c.
template <int M>
inline __attribute__((always_inline)) void end_chain(const F* chain, const Batch& of, int columns, float* c, Index ldc) {
  if (of.rows == M && columns == 16) {
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i, c += ldc) Simd::store(c, of.first ? chain[i] : Simd::add(Simd::load(c), chain[i]));
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i, c += ldc)
    if (i < of.rows && columns > 0)
      Simd::store_n(c, of.first ? chain[i] : Simd::add(load_columns(c, columns), chain[i]), columns);
}

template <Kind kKind>
void multiply(const Batch& of, std::int32_t (*sum)[kSums<kKind>][kNv][kTileRows][16]) {
  for (int b = 0; b < of.blocks; b += 2) {
    multiply_block<kKind, 0>(of.row[b], of.entry + b * kEntryBytes, sum[b]);
    if (b + 1 < of.blocks) multiply_block<kKind, 1>(of.row[b + 1], of.entry + (b + 1) * kEntryBytes, sum[b + 1]);
  }
}

// Scales what was multiplied, of at most M rows. (Unrolled by order: else the compiler keeps the chains in memory.)
template <Kind kKind, int M = kTileRows>
void scale(const Batch& of, const std::int32_t (*sum)[kSums<kKind>][kNv][kTileRows][16], float (*carried)[kTileRows][16],
           Index ldc, int n) {
  if constexpr (M > 4)
    if (of.rows <= M - 4) return scale<kKind, M - 4>(of, sum, carried, ldc, n);
  for (int vector = 0; vector < kNv; ++vector) {
    F chain[M];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) chain[i] = of.begins ? Simd::zero() : Simd::load(carried[vector][i]);
    for (int b = 0; b < of.blocks; ++b) scale_block<kKind, M>(of.row[b], of.entry + b * kEntryBytes, vector, sum[b], chain);
    const int columns = n - 16 * vector < 16 ? n - 16 * vector : 16;
    if (of.ends)
      end_chain<M>(chain, of, columns, of.c + 16 * vector, ldc);
    else
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) Simd::store(carried[vector][i], chain[i]);
  }
}

inline void configure(int sums) {
  TileConfig config;
  for (int sum = 0; sum < 4; ++sum) config.set(sum, kTileRows, 64);
  config.set(4, kTileRows, kQuantBlock / sums);
  config.set(6, kQuantBlock / 4 / sums, 64).set(7, kQuantBlock / 4 / sums, 64);
  tiles_configure(config);
}

template <Kind kKind>
void tile(Index blocks, int first, int last, TileRows rows, int m, const char* panel, float* c, Index ldc, int n,
          FetchAhead ahead) {
  const auto* const block = reinterpret_cast<const ArrangedBlock*>(rows.arranged);
  const ChainOrder order(blocks);
  const int row_tiles = (m + kTileRows - 1) / kTileRows;
  Buffers<kKind> buffer;
  Batch now = {.blocks = 0, .rows = 0, .begins = true, .ends = true, .first = true, .row = block, .entry = panel, .c = c};
  int turn = 0;
  configure(kSums<kKind>);
  for (int chain = first; chain < last; ++chain) {
    const Index begin = order.entry(chain, 0), steps = order.steps(chain), lines = ahead.lines * steps;
    for (int t = 0; t < row_tiles; ++t) {
      for (Index line = lines * t / row_tiles; line < lines * (t + 1) / row_tiles; ++line)
        if (ahead.begin + 64 * line < ahead.end) __builtin_prefetch(ahead.begin + 64 * line, 0, 2);
      const int row = kTileRows * t, here = m - row < kTileRows ? m - row : kTileRows;
      Index done = 0;
      do {  // a chain without blocks is a sum too
        const int some = steps - done < kBatch ? static_cast<int>(steps - done) : kBatch;
        Batch next;
        next.blocks = some, next.rows = here;
        next.begins = done == 0, next.ends = done + some == steps, next.first = chain == 0;
        next.row = block + begin * row_tiles + t * steps + done;
        next.entry = panel + (begin + done) * kEntryBytes;
        next.c = c + row * ldc;
        multiply<kKind>(next, buffer.sum[turn]);
        scale<kKind>(now, buffer.sum[1 - turn], buffer.chain, ldc, n);
        now = next, turn = 1 - turn, done += some;
      } while (done < steps);
    }
    ahead.begin += 64 * lines;
  }
  scale<kKind>(now, buffer.sum[1 - turn], buffer.chain, ldc, n);
  tiles_release();
}

double peak(Index rounds, float* sink) {
  alignas(64) static const std::int8_t kZeros[16][64] = {};
  alignas(64) std::int32_t sums[16][16];
  TileConfig config;
  for (int t = 0; t < 8; ++t) config.set(t, 16, 64);
  tiles_configure(config);
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  tile_load<4>(kZeros, 64), tile_load<5>(kZeros, 64), tile_load<6>(kZeros, 64), tile_load<7>(kZeros, 64);
  constexpr Index kFewer = 8;  // a round is 64 cycles instead of six
  for (Index r = 0; r < rounds; r += kFewer) {
    tile_dot_int8<0, 4, 6>();
    tile_dot_int8<1, 4, 7>();
    tile_dot_int8<2, 5, 6>();
    tile_dot_int8<3, 5, 7>();
  }
  tile_store<0>(sums, 64);
  tiles_release();
  *sink = static_cast<float>(sums[0][0]);
  return 2.0 * 16 * 16 * 64 * 4 * static_cast<double>((rounds + kFewer - 1) / kFewer);
}

template <class Type>
void take_over(QuantType& type) {
  type.pack = pack<Type, 0>;
  type.repacked_tile = nullptr;
  type.pack_repacked = pack_repacked<Type, 0>;
  type.tile = tile<Type::kKind>;
}
