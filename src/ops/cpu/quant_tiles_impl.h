// Tiles of quant_kernels.h by AMX: the integers come from the tile unit, by way of a small buffer, and chains and scales
// are those of quant_impl.h in AVX-512, so the bits are those of the kernels for dot products of bytes. Panels hold signed
// numbers, so that no sum needs a start.
//
// One block of 32 numbers for 16 rows and 16 columns is one product: 16 cycles, whether its tiles are 32 or 64 bytes wide.
// Storing it is 16 stores, and then there are 16 conversions, 16 products of scales and 16 multiply-adds, two of which
// begin in a cycle: 24 cycles, 32 with minimums, 48 with scales of half blocks (two products). So vectors bind, and loads
// nearly: per product 16 of sums, 16 of rows' scales, 24 rows of tiles for two products that share the activations and 16
// lines gathered for both, 52 to 60 of which two or three begin in a cycle. Dot products of bytes take 64 cycles for the
// same and the same 24 besides. (All from Intel's tables: no such processor was measured.)
//
// So a batch of a chain's blocks is multiplied while the sums of the batch before, of other rows, are scaled.
// (No include guard: included once, inside the namespace of quant_target_amx.cpp, after quant_pack.h and amx.h.)

constexpr int kTileRows = 16;
constexpr int kBatch = 4;  // blocks: with 16 chains, those of a chain with K up to 2048
template <Kind kKind>
constexpr int kSums = kKind == Kind::kHalves ? 2 : 1;  // products of a block

// Some blocks of one chain, for up to 16 rows and the columns of a panel.
struct Batch {
  int blocks, rows;
  bool begins, ends, first;  // of the chain; the first chain
  const char* entry;         // of the panel
  float* c;
};

// What a tile works with. Batches take one and then the other half of what they multiply and what they give.
template <Kind kKind>
struct alignas(64) Buffers {
  ActivationBlock rows[2][kBatch][kTileRows];
  std::int32_t sum[2][kBatch][kSums<kKind>][kNv][kTileRows][16];
  float chain[kNv][kTileRows][16];  // of a chain that is longer than a batch
};

DSMOE_MASKED inline F load_columns(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}

// The products of one block. (Two pairs of tiles in turns: one may be stored while the other is computed.)
template <Kind kKind, int kTurn, int kPart = 0>
inline __attribute__((always_inline)) void multiply_block(const ActivationBlock* rows, const char* entry,
                                                          std::int32_t (*sum)[kNv][kTileRows][16]) {
  constexpr int kC = 2 * ((kTurn + kPart) % 2), kUnits = 8 / kSums<kKind>;
  tile_zero<kC>();
  tile_zero<kC + 1>();
  tile_load<4>(rows->q + 4 * kUnits * kPart, sizeof(ActivationBlock));
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
inline __attribute__((always_inline)) void scale_block(const ActivationBlock* rows, const char* entry, int vector,
                                                       const std::int32_t (*sum)[kNv][kTileRows][16], F* chain) {
  const auto* scales = reinterpret_cast<const float*>(entry + kNr * kQuantBlock) + 16 * vector;
#pragma GCC unroll 2
  for (int part = 0; part < kSums<kKind>; ++part) {
    const F scale = Simd::load(scales + part * kNr);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
      chain[i] = Simd::fma(Simd::to_float(Simd::load_ints(sum[part][vector][i])),
                           Simd::mul(scale, Simd::set(rows[i].scale)), chain[i]);
  }
  if constexpr (kKind == Kind::kMinimum) {
    const F minimum = Simd::load(scales + kNr);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) chain[i] = Simd::fnma(minimum, Simd::set(rows[i].total), chain[i]);
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

// Multiplies the blocks of `next` and scales those of `now`, multiplied before, of at most M rows, in turns. (Unrolled by
// order: else the compiler keeps the chains in memory.)
template <Kind kKind, int M>
void two_batches(const Batch& next, const Batch& now, int turn, Buffers<kKind>& buffer, Index ldc, int n) {
  int multiplied = 0;
  const auto multiply = [&] {
    if (multiplied == next.blocks) return;
    const char* const entry = next.entry + multiplied * kEntryBytes;
    const ActivationBlock* const rows = buffer.rows[turn][multiplied];
    if (multiplied % 2 == 0)
      multiply_block<kKind, 0>(rows, entry, buffer.sum[turn][multiplied]);
    else
      multiply_block<kKind, 1>(rows, entry, buffer.sum[turn][multiplied]);
    ++multiplied;
  };
  for (int vector = 0; vector < kNv; ++vector) {
    F chain[M];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) chain[i] = now.begins ? Simd::zero() : Simd::load(buffer.chain[vector][i]);
    for (int b = 0; b < now.blocks; ++b) {
      if ((vector * now.blocks + b) % kNv == 0) multiply();
      scale_block<kKind, M>(buffer.rows[1 - turn][b], now.entry + b * kEntryBytes, vector, buffer.sum[1 - turn][b], chain);
    }
    const int columns = n - 16 * vector < 16 ? n - 16 * vector : 16;
    if (now.ends)
      end_chain<M>(chain, now, columns, now.c + 16 * vector, ldc);
    else
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) Simd::store(buffer.chain[vector][i], chain[i]);
  }
  while (multiplied < next.blocks) multiply();
}

template <Kind kKind, int M = kTileRows>
void batches(const Batch& next, const Batch& now, int turn, Buffers<kKind>& buffer, Index ldc, int n) {
  if constexpr (M > 4)
    if (now.rows <= M - 4) return batches<kKind, M - 4>(next, now, turn, buffer, ldc, n);
  two_batches<kKind, M>(next, now, turn, buffer, ldc, n);
}

inline void configure(int sums) {
  TileConfig config;
  for (int sum = 0; sum < 4; ++sum) config.set(sum, kTileRows, 64);
  config.set(4, kTileRows, kQuantBlock / sums);
  config.set(6, kQuantBlock / 4 / sums, 64).set(7, kQuantBlock / 4 / sums, 64);
  tiles_configure(config);
}

template <Kind kKind>
void tile(Index blocks, int first, int last, const ActivationBlock* const* rows, int m, const char* panel, float* c,
          Index ldc, int n, FetchAhead ahead) {
  Buffers<kKind> buffer;
  __builtin_memset(buffer.rows, 0, sizeof buffer.rows);  // rows that are not there give numbers that nobody reads
  configure(kSums<kKind>);
  const ChainOrder order(blocks);
  const int row_tiles = (m + kTileRows - 1) / kTileRows;
  Batch now = {.blocks = 0, .rows = 0, .begins = true, .ends = true, .first = true, .entry = panel, .c = c};
  int turn = 0;
  for (int chain = first; chain < last; ++chain) {
    const Index steps = order.steps(chain), lines = ahead.lines * steps;
    for (int t = 0; t < row_tiles; ++t) {
      for (Index line = lines * t / row_tiles; line < lines * (t + 1) / row_tiles; ++line)
        if (ahead.begin + 64 * line < ahead.end) __builtin_prefetch(ahead.begin + 64 * line, 0, 2);
      const int row = kTileRows * t, here = m - row < kTileRows ? m - row : kTileRows;
      Index done = 0;
      do {  // a chain without blocks is a sum too
        const Index number = order.entry(chain, done);
        const int some = steps - done < kBatch ? static_cast<int>(steps - done) : kBatch;
        for (int b = 0; b < some; ++b)
          for (int i = 0; i < here; ++i) {
            const B line = Simd::load_bytes(rows[row + i] + number + b);
            Simd::store_bytes64(&buffer.rows[turn][b][i], line);
          }
        const Batch next = {some,         here, done == 0, done + some == steps, chain == 0, panel + number * kEntryBytes,
                            c + row * ldc};
        batches<kKind>(next, now, turn, buffer, ldc, n);
        now = next, turn = 1 - turn, done += some;
      } while (done < steps);
    }
    ahead.begin += 64 * lines;
  }
  Batch none = now;
  none.blocks = 0;
  batches<kKind>(none, now, turn, buffer, ldc, n);
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
  type.tile = tile<Type::kKind>;
}
