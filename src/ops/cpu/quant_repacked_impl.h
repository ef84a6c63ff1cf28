// Few rows times repacked weights, straight from their lines. (No include guard: included by quant_impl.h alone.)

// One block of 32 weight rows: as tile_block(), but what a panel has ready is taken out here.
template <class Type, int M>
inline __attribute__((always_inline)) void repacked_block(const ActivationBlock* const* rows, Index number, const char* head,
                                                          const char* scales, F (&chain)[M][2]) {
  constexpr Kind kKind = Type::kKind;
  constexpr int kParts = kKind == Kind::kHalves ? 2 : 1;
  const char* const codes = scales + Parts<Type>::kScales;
  const Scales s[2] = {repacked_scales<Type>(head, scales, 0), repacked_scales<Type>(head, scales, 1)};
  I sum[kParts][M][2];
  for (int part = 0; part < kParts; ++part)
    for (int i = 0; i < M; ++i) {
      const ActivationBlock& a = rows[i][number];
      const I begin = begin_of<Type::kZero>(kParts == 1 ? a.start : a.start_half[part]);
      sum[part][i][0] = sum[part][i][1] = begin;
    }
#pragma GCC unroll 8
  for (int at = 0; at < 8; ++at) {
    const int u = at / 2 + at % 2 * 4;  // the two that share lines, one after the other
    const B w[2] = {repacked_codes<Type>(codes, 0, u), repacked_codes<Type>(codes, 1, u)};
    for (int i = 0; i < M; ++i) {
      const B a = Simd::broadcast4(rows[i][number].q + 4 * u);
      for (int v = 0; v < 2; ++v) {
        I& to = sum[kParts == 1 ? 0 : u / 4][i][v];
        to = Simd::template dot<Type::kMost>(to, w[v], a);
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    const F a = Simd::set(rows[i][number].scale);
    for (int v = 0; v < 2; ++v) {
      chain[i][v] = Simd::fma(Simd::to_float(sum[0][i][v]), Simd::mul(s[v].first, a), chain[i][v]);
      if constexpr (kKind == Kind::kHalves)
        chain[i][v] = Simd::fma(Simd::to_float(sum[1][i][v]), Simd::mul(s[v].second, a), chain[i][v]);
      if constexpr (kKind == Kind::kMinimum)
        chain[i][v] = Simd::fnma(s[v].second, Simd::set(rows[i][number].total), chain[i][v]);
    }
  }
}

template <class Type, int M>
__attribute__((flatten)) void repacked_rows(Index blocks, const ActivationBlock* const* rows, const char* w, Index n,
                                            float* c, Index ldc, StreamAhead stream) {
  const Index heads = repacked_heads<Type>(blocks), group = heads + blocks * kRepackedEntry<Type>, bytes = n / 32 * group;
  const Index per_block = group / blocks;
  const Index chains = blocks < kQuantChains ? blocks + 1 : kQuantChains;  // one without blocks does for all
  for (Index g = 0; g < bytes; g += group, c += 32) {
    const char* entry = w + g + heads;
    Index number = 0;
    for (Index chain_number = 0; chain_number < chains; ++chain_number) {
      const Index ahead = g + number * per_block + stream.distance;
      const char* fetch = ahead < bytes ? w + ahead : stream.next ? stream.next + (ahead - bytes) : w;
      F chain[M][2];
      for (int i = 0; i < M; ++i) chain[i][0] = chain[i][1] = Simd::zero();
      for (Index b = chain_number; b < blocks; b += kQuantChains, ++number) {
        for (Index line = 0; line < per_block; line += 64) __builtin_prefetch(fetch + line, 0, 0);
        repacked_block<Type, M>(rows, number, w + g + b / 8 * Parts<Type>::kHead, entry, chain);
        entry += kRepackedEntry<Type>, fetch += per_block;
      }
      for (int i = 0; i < M; ++i)
        for (int v = 0; v < 2; ++v) {
          float* const to = c + i * ldc + 16 * v;
          Simd::store(to, chain_number == 0 ? chain[i][v] : Simd::add(Simd::load(to), chain[i][v]));
        }
    }
  }
}

constexpr int kRepackedMr = kMr > kQuantFewRows ? kMr : kQuantFewRows;
template <class Type, int M = kRepackedMr>
void repacked(Index blocks, const ActivationBlock* const* rows, int m, const char* w, Index n, float* c, Index ldc,
              StreamAhead stream) {
  if (m == M) return repacked_rows<Type, M>(blocks, rows, w, n, c, ldc, stream);
  if constexpr (M > 1) repacked<Type, M - 1>(blocks, rows, m, w, n, c, ldc, stream);
}
