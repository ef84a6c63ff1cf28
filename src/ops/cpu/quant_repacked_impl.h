// Few rows times repacked weights, straight from their lines. (No include guard: included by quant_impl.h alone.)

// One block of 32 weight rows: as tile_block(), but what a panel has ready is taken out here.
template <class Type, int M, class Fetch>
inline __attribute__((always_inline)) void repacked_block(const ActivationBlock* const* rows, Index number,
                                                          const char* head, const char* scales, F (&chain)[M][2],
                                                          const Fetch& fetch) {
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
    fetch.unit(at);
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

// What is fetched ahead, a part of it with each of the eight units of a block: bytes that come in the order in which they
// are read, a steady trickle. (All of a block at once, or scales and codes from two places, read slower from memory.)
template <class Type>
struct StreamFetch {
  static constexpr int kLines = static_cast<int>((kRepackedEntry<Type> + Parts<Type>::kHead / 8 + 63) / 64);
  const char* w;
  Index bytes, per_block, ahead;
  const char* next;
  const char* from = nullptr;

  void block(Index number) {
    const Index at = ahead + number * per_block;
    from = at < bytes ? w + at : next ? next + (at - bytes) : w;
  }
  void unit(int u) const {
    for (int line = kLines * u / 8; line < kLines * (u + 1) / 8; ++line) __builtin_prefetch(from + 64 * line, 0, 0);
  }
};

// Of many rows: the weights of the next group, a few lines with every block.
struct SpreadFetch {
  FetchAhead left;

  void block(Index) {
    for (int line = 0; line < left.lines && left.begin < left.end; ++line, left.begin += 64)
      __builtin_prefetch(left.begin, 0, 2);
  }
  void unit(int) const {}
};

// A group of 32 weight rows.
template <class Type, int M, class Fetch>
inline __attribute__((always_inline)) void repacked_group(Index blocks, const ActivationBlock* const* rows, const char* w,
                                                          float* c, Index ldc, Fetch& fetch) {
  const char* entry = w + repacked_heads<Type>(blocks);
  const Index chains = blocks < kQuantChains ? blocks + 1 : kQuantChains;  // one without blocks does for all
  Index number = 0;
  for (Index chain_number = 0; chain_number < chains; ++chain_number) {
    F chain[M][2];
    for (int i = 0; i < M; ++i) chain[i][0] = chain[i][1] = Simd::zero();
    for (Index b = chain_number; b < blocks; b += kQuantChains, ++number, entry += kRepackedEntry<Type>) {
      fetch.block(number);
      repacked_block<Type, M>(rows, number, w + b / 8 * Parts<Type>::kHead, entry, chain, fetch);
    }
    for (int i = 0; i < M; ++i)
      for (int v = 0; v < 2; ++v) {
        float* const to = c + i * ldc + 16 * v;
        Simd::store(to, chain_number == 0 ? chain[i][v] : Simd::add(Simd::load(to), chain[i][v]));
      }
  }
}

template <class Type, int M>
__attribute__((flatten)) void repacked_rows(Index blocks, const ActivationBlock* const* rows, const char* w, Index n,
                                            float* c, Index ldc, StreamAhead stream) {
  const Index group = repacked_heads<Type>(blocks) + blocks * kRepackedEntry<Type>, bytes = n / 32 * group;
  for (Index g = 0; g < bytes; g += group, c += 32) {
    StreamFetch<Type> fetch{w, bytes, group / blocks, g + stream.distance, stream.next};
    repacked_group<Type, M>(blocks, rows, w + g, c, ldc, fetch);
  }
}

constexpr int kRepackedMr = kMr > kQuantFewRows ? kMr : kQuantFewRows;
template <class Type, int M = kRepackedMr>
void repacked(Index blocks, const ActivationBlock* const* rows, int m, const char* w, Index n, float* c, Index ldc,
              StreamAhead stream) {
  if (m == M) return repacked_rows<Type, M>(blocks, rows, w, n, c, ldc, stream);
  if constexpr (M > 1) repacked<Type, M - 1>(blocks, rows, m, w, n, c, ldc, stream);
}

template <class Type, int M>
__attribute__((flatten)) void repacked_tile_rows(Index blocks, const ActivationBlock* const* rows, const char* w, float* c,
                                                 Index ldc, FetchAhead ahead) {
  SpreadFetch fetch{ahead};
  repacked_group<Type, M>(blocks, rows, w, c, ldc, fetch);
}
template <class Type, int M = kRepackedTile>
void repacked_tile(Index blocks, const ActivationBlock* const* rows, int m, const char* w, float* c, Index ldc,
                   FetchAhead ahead) {
  if (m == M) return repacked_tile_rows<Type, M>(blocks, rows, w, c, ldc, ahead);
  if constexpr (M > 1) repacked_tile<Type, M - 1>(blocks, rows, m, w, c, ldc, ahead);
}

// Many rows need no panel where a vector takes a line and there are registers for all sums, unless scales are much of the
// work: those of panels are ready.
template <class Type>
constexpr auto repacked_tile_of() -> decltype(QuantType::repacked_tile) {
  if constexpr (kNv == 2 && Type::kKind == Kind::kPlain) return repacked_tile<Type>;
  return nullptr;
}
