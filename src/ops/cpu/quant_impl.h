// The kernels of quant_kernels.h, written once over a Simd type of sixteen lanes and compiled once per instruction set. Raw
// pointers only, and no standard library templates, for the reason that kernels_impl.h gives.
// (No include guard: included once per target file, after the Simd of that target, quant_types.h and quant_pack.h.)

constexpr int kMr = Simd::kMr;

// -----------------------------------------------------------------------------------------------------------------
// Rows to 8 bits.

void quantize(Index k, const float* x, ActivationChunk* chunks, ActivationBlock* blocks) {
  const Index count = k / kQuantBlock;
  const ChainOrder order(count);
  // Blocks past the end are zero.
  if (chunks && count % kQuantChains != 0) __builtin_memset(chunks + count / kQuantChains, 0, sizeof(ActivationChunk));
  for (Index b = 0; b < count; ++b) {
    const F half[2] = {Simd::load(x + b * kQuantBlock), Simd::load(x + b * kQuantBlock + 16)};
    const float most = Simd::largest(Simd::max_abs(half[0], half[1]));
    // 0 for numbers, NaN for the rest, which a maximum may pass over.
    const float bad = Simd::sum(Simd::mul(Simd::add(half[0], half[1]), Simd::zero()));
    const bool round = bad == 0 && most >= 1e-30f;  // smaller: the inverse would be infinite
    const F inverse = Simd::set(round ? 127.0f / most : 0.0f);
    const int n = static_cast<int>(b % kQuantChains);
    ActivationBlock block;
    block.scale = bad != 0 ? __builtin_nanf("") : round ? most / 127.0f : 0.0f;
    for (int h = 0; h < 2; ++h) {
      const I q = Simd::to_int(round ? Simd::mul(half[h], inverse) : Simd::zero());
      Simd::store_bytes(block.q + 16 * h, q);
      if (chunks) Simd::store_bytes(chunks[b / kQuantChains].q[h][n % 4][n / 4], q);
      block.start_half[h] = -128 * Simd::sum_ints(q);
    }
    block.start = block.start_half[0] + block.start_half[1];
    block.total = block.scale * static_cast<float>(block.start / -128);
    if (blocks) blocks[order.entry(n, b / kQuantChains)] = block;
    if (chunks) {
      ActivationChunk& to = chunks[b / kQuantChains];
      to.scale[n] = block.scale;
      to.start[n] = block.start;
      to.total[n] = block.total;
      for (int h = 0; h < 2; ++h) to.start_half[h][n] = block.start_half[h];
    }
  }
}

// -----------------------------------------------------------------------------------------------------------------
// Few rows, straight from the blocks.

constexpr int log2_of(int x) { return x <= 1 ? 0 : 1 + log2_of(x / 2); }

// -kZero * sum of q, from -128 times it.
template <class Type>
I correction(const std::int32_t* start) {
  return Simd::template shift_right_ints<7 - log2_of(Type::kZero)>(Simd::load_ints(start));
}

// The same for one block.
template <int kZero>
I begin_of(std::int32_t start) {
  if constexpr (kZero == 0) return Simd::set_int(0);
  if constexpr (kZero == 128) return Simd::set_int(start);
  return Simd::template shift_right_ints<7 - log2_of(kZero)>(Simd::set_int(start));
}

// `here` < 16: the blocks after the first `here` belong to something else. What they meet is zero, and so are their scales.
template <class Type, int M, class Blocks>
inline __attribute__((always_inline)) void few_chunk(const Blocks& b, const ActivationChunk* const* rows, Index chunk,
                                                     F* chain, int here = kQuantChains) {
  const Codes c = Type::codes(b);
  Scales s = Type::scales(b);
  if (here < kQuantChains) s = {Simd::first_n(s.first, here), Simd::first_n(s.second, here)};
  const I none = Simd::set_int(0);
  for (int m = 0; m < M; ++m) {
    const ActivationChunk& a = rows[m][chunk];
    I sum[2][4];
    for (int i = 0; i < 4; ++i) {
      sum[0][i] = Simd::template dot<Type::kMost>(none, c.q[0][i], Simd::load_bytes(a.q[0][i]));
      sum[1][i] = Simd::template dot<Type::kMost>(Type::kKind == Kind::kHalves ? none : sum[0][i], c.q[1][i],
                                                  Simd::load_bytes(a.q[1][i]));
    }
    const F scale = Simd::load(a.scale);
    I all = Simd::sum_quarters(sum[1][0], sum[1][1], sum[1][2], sum[1][3]);
    if constexpr (Type::kKind == Kind::kHalves) {
      I first = Simd::sum_quarters(sum[0][0], sum[0][1], sum[0][2], sum[0][3]);
      first = Simd::add_ints(first, correction<Type>(a.start_half[0]));
      all = Simd::add_ints(all, correction<Type>(a.start_half[1]));
      chain[m] = Simd::fma(Simd::to_float(first), Simd::mul(s.first, scale), chain[m]);
      chain[m] = Simd::fma(Simd::to_float(all), Simd::mul(s.second, scale), chain[m]);
    } else {
      if constexpr (Type::kZero != 0) all = Simd::add_ints(all, correction<Type>(a.start));
      chain[m] = Simd::fma(Simd::to_float(all), Simd::mul(s.first, scale), chain[m]);
      if constexpr (Type::kKind == Kind::kMinimum) chain[m] = Simd::fnma(s.second, Simd::load(a.total), chain[m]);
    }
  }
}

// The chains of up to 16 weight rows, added in order.
inline void add_chains(const float (*chain)[16], int n, float* c) {
  F lane[16];
  Simd::transpose(chain, lane);
  F sum = lane[0];
  for (int i = 1; i < 16; ++i) sum = Simd::add(sum, lane[i]);
  n == 16 ? Simd::store(c, sum) : Simd::store_n(c, sum, n);
}

// (flatten: GCC calls what reads scales and codes otherwise, and hands them over in memory.)
template <class Type, int M>
__attribute__((flatten)) void few_rows(Index blocks, const ActivationChunk* const* rows, const char* w, Index row_bytes,
                                       Index n, float* c, Index ldc, StreamAhead stream) {
  using Block = typename Type::Block;
  constexpr Index kChunkBytes = sizeof(Block) * kChunkBlocks<Type>;
  const Index chunks = blocks / kQuantChains;
  const int rest = static_cast<int>(blocks % kQuantChains * kQuantBlock / Block::kNumbers);
  const Index bytes = n * row_bytes, past_row = (kChunkBlocks<Type> - rest) * static_cast<Index>(sizeof(Block));
  alignas(64) float buffer[M][16][16];
  if (n % 16 != 0) __builtin_memset(buffer, 0, sizeof buffer);
  for (Index j = 0; j < n; ++j) {
    F chain[M];
    for (int m = 0; m < M; ++m) chain[m] = Simd::zero();
    const Index ahead = j * row_bytes + stream.distance;
    const char* const fetch = ahead < bytes ? w + ahead : stream.next ? stream.next + (ahead - bytes) : w;
    const auto* block = reinterpret_cast<const Block*>(w + j * row_bytes);
    for (Index t = 0; t < chunks; ++t, block += kChunkBlocks<Type>) {
      for (Index line = 0; line < kChunkBytes; line += 64) __builtin_prefetch(fetch + t * kChunkBytes + line, 0, 2);
      few_chunk<Type, M>(block, rows, t, chain);
    }
    if (rest > 0) {
      for (Index line = 0; line < rest * static_cast<Index>(sizeof(Block)); line += 64)
        __builtin_prefetch(fetch + chunks * kChunkBytes + line, 0, 2);
      if ((n - 1 - j) * row_bytes >= past_row)  // there are rows to read on in
        few_chunk<Type, M>(block, rows, chunks, chain, static_cast<int>(blocks % kQuantChains));
      else
        few_chunk<Type, M>(BlocksAt<Block>{block, rest - 1}, rows, chunks, chain);
    }
    for (int m = 0; m < M; ++m) Simd::store(buffer[m][j % 16], chain[m]);
    if (j % 16 == 15 || j + 1 == n)
      for (int m = 0; m < M; ++m) add_chains(buffer[m], static_cast<int>(j % 16 + 1), c + m * ldc + j / 16 * 16);
  }
}

#include "ops/cpu/quant_short_rows.h"

template <class Type, int M = kQuantFewRows>
void few(Index blocks, const ActivationChunk* const* rows, int m, const char* w, Index row_bytes, Index n, float* c,
         Index ldc, StreamAhead stream) {
  if (m == M && 2 * blocks <= kQuantChains)
    return few_short_rows<Type, M>(static_cast<int>(blocks), rows, w, row_bytes, n, c, ldc, stream);
  if (m == M) return few_rows<Type, M>(blocks, rows, w, row_bytes, n, c, ldc, stream);
  if constexpr (M > 1) few<Type, M - 1>(blocks, rows, m, w, row_bytes, n, c, ldc, stream);
}

// -----------------------------------------------------------------------------------------------------------------
// Many rows: tiles over panels.

// What stands for 0 in a panel: 128, as the rows' own numbers are for, unless larger codes take longer.
template <class Type>
constexpr int kPanelZero = Simd::kSignedCodes ? Type::kZero : 128;

// One block: integer sums, started with the rows' own numbers, times the scales.
template <class Type, int M>
inline __attribute__((always_inline)) void tile_block(const char* const* row, Index at, const char* entry,
                                                      F (&chain)[M][kNv]) {
  constexpr Index kScale = __builtin_offsetof(ActivationBlock, scale), kStart = __builtin_offsetof(ActivationBlock, start);
  constexpr Index kTotal = __builtin_offsetof(ActivationBlock, total),
                  kHalf = __builtin_offsetof(ActivationBlock, start_half);
  constexpr Kind kKind = Type::kKind;
  constexpr int kMost = kPanelZero<Type> == 128 ? 255 : Type::kMost;
  constexpr int kParts = kKind == Kind::kHalves ? 2 : 1, kUnits = 8 / kParts;
  const auto* scales = reinterpret_cast<const float*>(entry + kNr * kQuantBlock);
  for (int part = 0; part < kParts; ++part) {
    I sum[M][kNv];
    for (int i = 0; i < M; ++i) {
      const auto* start = reinterpret_cast<const std::int32_t*>(row[i] + at + (kParts == 1 ? kStart : kHalf + 4 * part));
      for (int j = 0; j < kNv; ++j) sum[i][j] = begin_of<kPanelZero<Type>>(*start);
    }
    for (int u = kUnits * part; u < kUnits * (part + 1); ++u) {
      B w[kNv];
      for (int j = 0; j < kNv; ++j) w[j] = Simd::load_bytes(entry + (u * kNv + j) * 64);
      for (int i = 0; i < M; ++i) {
        const B a = Simd::broadcast4(reinterpret_cast<const std::int8_t*>(row[i] + at + 4 * u));
        for (int j = 0; j < kNv; ++j) sum[i][j] = Simd::template dot<kMost>(sum[i][j], w[j], a);
      }
    }
    F scale[kNv];
    for (int j = 0; j < kNv; ++j) scale[j] = Simd::load(scales + part * kNr + 16 * j);
    for (int i = 0; i < M; ++i) {
      const F a = Simd::set(*reinterpret_cast<const float*>(row[i] + at + kScale));
      for (int j = 0; j < kNv; ++j) chain[i][j] = Simd::fma(Simd::to_float(sum[i][j]), Simd::mul(scale[j], a), chain[i][j]);
    }
  }
  if constexpr (kKind == Kind::kMinimum) {
    F minimum[kNv];
    for (int j = 0; j < kNv; ++j) minimum[j] = Simd::load(scales + kNr + 16 * j);
    for (int i = 0; i < M; ++i) {
      const F total = Simd::set(*reinterpret_cast<const float*>(row[i] + at + kTotal));
      for (int j = 0; j < kNv; ++j) chain[i][j] = Simd::fnma(minimum[j], total, chain[i][j]);
    }
  }
}

template <class Type, int M>
void tile_rows(Index blocks, int first, int last, const ActivationBlock* const* rows, const char* panel, float* c,
               Index ldc, int n, FetchAhead ahead) {
  const char* row[M];
  for (int i = 0; i < M; ++i) row[i] = reinterpret_cast<const char*>(rows[i]);
  // At the right edge sums are kept apart, so that whole vectors may be used.
  alignas(64) float edge[M][kNr];
  float* const total = n == kNr ? c : edge[0];
  const Index ld = n == kNr ? ldc : kNr;
  for (int i = 0; i < M && n < kNr && first > 0; ++i)
    __builtin_memcpy(edge[i], c + i * ldc, static_cast<unsigned>(n) * sizeof(float));
  const ChainOrder order(blocks);
  Index number = order.entry(first, 0);
  const char* fetch = ahead.begin;
  for (int chain_number = first; chain_number < last; ++chain_number) {
    F chain[M][kNv];
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < kNv; ++j) chain[i][j] = Simd::zero();
    for (Index left = order.steps(chain_number); left > 0; --left, ++number) {
      for (int line = 0; line < ahead.lines && fetch < ahead.end; ++line, fetch += 64) __builtin_prefetch(fetch, 0, 2);
      tile_block<Type, M>(row, number * static_cast<Index>(sizeof(ActivationBlock)), panel + number * kEntryBytes, chain);
    }
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < kNv; ++j) {
        float* const to = total + i * ld + 16 * j;
        Simd::store(to, chain_number == 0 ? chain[i][j] : Simd::add(Simd::load(to), chain[i][j]));
      }
  }
  for (int i = 0; i < M && n < kNr; ++i) __builtin_memcpy(c + i * ldc, edge[i], static_cast<unsigned>(n) * sizeof(float));
}

template <class Type, int M = kMr>
void tile(Index blocks, int first, int last, TileRows rows, int m, const char* panel, float* c, Index ldc, int n,
          FetchAhead ahead) {
  if (m == M) return tile_rows<Type, M>(blocks, first, last, rows.row, panel, c, ldc, n, ahead);
  if constexpr (M > 1) tile<Type, M - 1>(blocks, first, last, rows, m, panel, c, ldc, n, ahead);
}

#include "ops/cpu/quant_repacked_impl.h"

void widen_f16(Index n, const std::uint16_t* x, float* y) {
  for (Index i = 0; i < n; i += 16) {
    std::uint64_t four[4] = {};
    const int here = n - i < 16 ? static_cast<int>(n - i) : 16;
    __builtin_memcpy(four, x + i, here == 16 ? 32u : 2u * static_cast<unsigned>(here));
    const F wide = Simd::from_halves(four[0], four[1], four[2], four[3]);
    here == 16 ? Simd::store(y + i, wide) : Simd::store_n(y + i, wide, here);
  }
}

void widen_q8_0(Index blocks, const void* x, float* y) {
  constexpr Index kBytes = 2 + kQuantBlock;  // an f16 scale, then the codes
  const auto* from = static_cast<const char*>(x);
  for (Index b = 0; b < blocks; ++b, from += kBytes, y += kQuantBlock) {
    std::uint16_t half;
    __builtin_memcpy(&half, from, 2);
    const std::uint64_t four = half * 0x0001000100010001u;
    const F scale = Simd::from_halves(four, four, four, four);
    Simd::store(y, Simd::mul(scale, Simd::to_float(Simd::widen_codes(from + 2))));
    Simd::store(y + 16, Simd::mul(scale, Simd::to_float(Simd::widen_codes(from + 18))));
  }
}

double peak(Index rounds, float* sink) {
  constexpr int kSums = Simd::kNv == 1 ? 6 : 12;  // what registers hold; one of two registers counts twice
  I sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = Simd::set_int(i);
  B a = Simd::set_byte(3), b = Simd::set_byte(5);
  for (Index r = 0; r < rounds; ++r)
    for (int i = 0; i < kSums; ++i) sum[i] = Simd::template dot<127>(sum[i], a, b);
  for (int i = 1; i < kSums; ++i) sum[0] = Simd::add_ints(sum[0], sum[i]);
  *sink = static_cast<float>(Simd::sum_ints(sum[0]));
  return 2.0 * 64 * kSums * static_cast<double>(rounds);
}

template <class Type>
constexpr QuantType kernels_of() {
  return {few<Type>,
          repacked<Type>,
          repacked_tile_of<Type>(),
          pack<Type, kPanelZero<Type>>,
          pack_repacked<Type, kPanelZero<Type>>,
          tile<Type>};
}

const QuantKernels kQuantTable = {
    .name = kName,
    .mr = kMr,
    .nr = kNr,
    .repacked_mr = kRepackedMr,
    .quantize = quantize,
    .type = {kernels_of<TypeQ8_0>(), kernels_of<TypeQ4_0>(), kernels_of<TypeQ5_0>(), kernels_of<TypeQ4_K>(),
             kernels_of<TypeQ5_K>(), kernels_of<TypeQ6_K>()},
    .widen_f16 = widen_f16,
    .widen_q8_0 = widen_q8_0,
    .peak = peak,
};
