// The kernels, written once over a Simd type and compiled once per instruction set: each target_<isa>.cpp
// includes this file inside its own namespace. Raw pointers only, and no standard library templates:
// an inline function compiled here with wide flags could be the copy that the linker keeps for all.
// (No include guard: included once per target file, after the Simd of that target.)

struct MulAddF32 {
  static V apply(V a, V b, V sum) { return Simd::fma(a, b, sum); }
};
struct MulAddBf16 {
  static V apply(V a, V b, V sum) { return Simd::dot_bf16(a, b, sum); }
};

constexpr int kW = Simd::kWidth;
constexpr int kMr = Simd::kMr;
constexpr int kNv = Simd::kNv;  // vectors across a tile
constexpr int kNr = kNv * kW;

// (Unrolled by order: else GCC 12 keeps a copy of the sums in memory, which it writes before and after the loop.)
template <class MulAdd, int M>
void tile_rows(Index k, const std::uint32_t* a, const std::uint32_t* b, float* c, Index ldc, int n, bool accumulate,
               Runs ahead) {
  V sum[M][kNv];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    __builtin_prefetch(c + i * ldc, 1);
    __builtin_prefetch(c + i * ldc + 16, 1);
#pragma GCC unroll 4
    for (int j = 0; j < kNv; ++j) sum[i][j] = Simd::zero();
  }
  for (Index p = 0, run = 0; p < k; ++run) {
    // One cache line is fetched ahead per step, so that memory and arithmetic work at the same time.
    const char* fetch = run < ahead.count ? static_cast<const char*>(ahead.begin[run]) : reinterpret_cast<const char*>(a);
    const Index end = p + kRunLines < k ? p + kRunLines : k;
    for (; p < end; ++p) {
      __builtin_prefetch(fetch, 0, 2);
      fetch += 64;
      V bv[kNv];
#pragma GCC unroll 4
      for (int j = 0; j < kNv; ++j) bv[j] = Simd::load(b + j * kW);
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        const V av = Simd::broadcast(a + i);
#pragma GCC unroll 4
        for (int j = 0; j < kNv; ++j) sum[i][j] = MulAdd::apply(av, bv[j], sum[i][j]);
      }
      a += M;
      b += kNr;
    }
  }
  if (n == kNr) {  // whole vectors: a masked store costs more
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kNv; ++j) {
        float* to = c + i * ldc + j * kW;
        Simd::store(to, accumulate ? Simd::add(Simd::load(to), sum[i][j]) : sum[i][j]);
      }
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kNv; ++j) {
      const int have = n >= (j + 1) * kW ? kW : n > j * kW ? n - j * kW : 0;
      float* to = c + i * ldc + j * kW;
      Simd::store_n(to, accumulate ? Simd::add(Simd::load_n(to, have), sum[i][j]) : sum[i][j], have);
    }
}

// Calls tile_rows<m> for a run-time m.
template <class MulAdd, int M = kMr>
void tile(Index k, const std::uint32_t* a, int m, const std::uint32_t* b, float* c, Index ldc, int n, bool accumulate,
          Runs ahead) {
  if (m == M) return tile_rows<MulAdd, M>(k, a, b, c, ldc, n, accumulate, ahead);
  if constexpr (M > 1) tile<MulAdd, M - 1>(k, a, m, b, c, ldc, n, accumulate, ahead);
}

// One square block of a panel: kW lines by kW units, transposed.
inline void pack_block(const std::uint32_t* const* line, Index p, std::uint32_t* to, int width) {
  V block[kW];
  for (int i = 0; i < kW; ++i) block[i] = Simd::load(line[i] + p);
  Simd::transpose(block);
  for (int j = 0; j < kW; ++j) Simd::store(to + j * width, block[j]);
}

// Row `row` of a panel of `rows` rows that are narrower than a vector. A whole vector spills over into the rows that
// follow, which are written later, and is stored faster than a part; at the end of the panel there are none to spill into.
inline void store_row(std::uint32_t* to, V v, int width, int here, Index row, Index rows) {
  if (here == kW || (width < kW && row * width + kW <= rows * width)) {
    Simd::store(to, v);
  } else {
    Simd::store_n(to, v, here);
  }
}

// The same at the edges: lines past `have` are zero, only `depth` units from p on and `here` columns are there.
inline void pack_edge(const std::uint32_t* const* line, int have, Index p, int depth, std::uint32_t* to, int width,
                      int here, Index rows) {
  V block[kW];
  for (int i = 0; i < kW; ++i)
    block[i] = i >= have ? Simd::zero() : depth == kW ? Simd::load(line[i] + p) : Simd::load_n(line[i] + p, depth);
  Simd::transpose(block);
  for (int j = 0; j < depth; ++j) store_row(to + j * width, block[j], width, here, p + j, rows);
}

// kW units of kW lines are transposed in registers and used at once: each then is unit p of all lines.
template <class MulAdd, int M>
void few_rows(Index k, Index depth, const std::uint32_t* a, const std::uint32_t* const* line, int lines, float* c,
              Index ldc, bool accumulate, const void* ahead) {
  const char* fetch = static_cast<const char*>(ahead);
  V total[M], sum[M];
  for (int i = 0; i < M; ++i) {
    total[i] = accumulate ? Simd::load_n(c + i * ldc, lines) : Simd::zero();
    sum[i] = Simd::zero();
  }
  bool first = !accumulate;
  for (Index p = 0, left = depth; p < k; p += kW) {
    V block[kW];
    const int units = k - p < kW ? static_cast<int>(k - p) : kW;
    if (units == kW && lines == kW) {
      for (int i = 0; i < kW; ++i) block[i] = Simd::load(line[i] + p);
    } else {
      for (int i = 0; i < kW; ++i) block[i] = i < lines ? Simd::load_n(line[i] + p, units) : Simd::zero();
    }
    for (int i = 0; i < kW && fetch; ++i, fetch += 4 * kW) __builtin_prefetch(fetch, 0, 2);
    Simd::transpose(block);
    // Units past the end are zero in the lines, but may be anything in a: they are left out.
    for (int j = 0; j < kW; ++j)
      for (int i = 0; i < M && (units == kW || j < units); ++i)
        sum[i] = MulAdd::apply(Simd::broadcast(a + (p + j) * M + i), block[j], sum[i]);
    left -= kW;
    if (left == 0 || p + kW >= k) {
      for (int i = 0; i < M; ++i) {
        total[i] = first ? sum[i] : Simd::add(total[i], sum[i]);
        sum[i] = Simd::zero();
      }
      first = false;
      left = depth;
    }
  }
  for (int i = 0; i < M; ++i) Simd::store_n(c + i * ldc, total[i], lines);
}

template <class MulAdd, int M = kFewRows>
void few(Index k, Index depth, const std::uint32_t* a, int m, const std::uint32_t* const* line, int lines, float* c,
         Index ldc, bool accumulate, const void* ahead) {
  if (m == M) return few_rows<MulAdd, M>(k, depth, a, line, lines, c, ldc, accumulate, ahead);
  if constexpr (M > 1) few<MulAdd, M - 1>(k, depth, a, m, line, lines, c, ldc, accumulate, ahead);
}

void pack_lines(const std::uint32_t* const* line, Index n, Index k, std::uint32_t* panels, int width, Index stride) {
  if (width == 1) {  // a line is its own panel
    for (Index i = 0; i < n; ++i)
      __builtin_memcpy(panels + i * stride, line[i], static_cast<unsigned long>(k) * sizeof(std::uint32_t));
    return;
  }
  for (Index first = 0; first < n; first += width, panels += stride) {
    for (int i = 0; i < width; i += kW) {
      const int here = width - i < kW ? width - i : kW;  // columns of the panel that this pass writes
      const Index left = n - first - i;
      const int have = left < here ? static_cast<int>(left < 0 ? 0 : left) : here;
      // The lines that come next are asked for while these are packed: each is a stream of its own that is
      // too short here for the hardware's prefetcher to catch.
      const std::uint32_t* const* ahead = line + first + i + here;
      const int to_come = static_cast<int>(left - here < 0 ? 0 : left - here < here ? left - here : here);
      for (Index p = 0; p < k; p += kW) {
        for (int a = 0; a < to_come; ++a) __builtin_prefetch(ahead[a] + p, 0, 2);
        if (have == kW && p + kW <= k) {
          pack_block(line + first + i, p, panels + p * width + i, width);
          continue;
        }
        pack_edge(line + first + i, have, p, k - p < kW ? static_cast<int>(k - p) : kW, panels + p * width + i, width, here,
                  k);
      }
    }
  }
}

constexpr Index kRowsAhead = 4;

void pack_across_f32(const float* const* line, Index n, Index k, std::uint32_t* panels, int width, Index stride) {
  for (Index p = 0; p < k; ++p) {
    const float* ahead = line[p + kRowsAhead < k ? p + kRowsAhead : p];
    for (Index i = 0; i < n; i += 16) __builtin_prefetch(ahead + i);
    for (Index first = 0, panel = 0; first < n; first += width, panel += stride) {
      for (int i = 0; i < width; i += kW) {
        const int here = width - i < kW ? width - i : kW;
        const Index left = n - first - i;
        const float* from = line[p] + first + i;
        const V v = left >= kW ? Simd::load(from) : left > 0 ? Simd::load_n(from, static_cast<int>(left)) : Simd::zero();
        store_row(panels + panel + p * width + i, v, width, here, p, k);
      }
    }
  }
}

void pack_across_bf16(const std::uint16_t* const* line, Index n, Index k, std::uint32_t* panels, int width, Index stride) {
  for (Index p = 0; p < k; p += 2) {
    const std::uint16_t* high = p + 1 < k ? line[p + 1] : nullptr;
    for (Index q = p + kRowsAhead; q < p + kRowsAhead + 2 && q < k; ++q)
      for (Index i = 0; i < n; i += 32) __builtin_prefetch(line[q] + i);
    for (Index first = 0, panel = 0; first < n; first += width, panel += stride) {
      for (int i = 0; i < width; i += kW) {
        const int here = width - i < kW ? width - i : kW;
        const Index left = n - first - i;
        const int have = left < kW ? static_cast<int>(left < 0 ? 0 : left) : kW;
        const V v = Simd::load_pairs(line[p] + first + i, high ? high + first + i : nullptr, have);
        store_row(panels + panel + p / 2 * width + i, v, width, here, p / 2, (k + 1) / 2);
      }
    }
  }
}

// Runs fn(offset, count) over n elements in vectors; the last one may be partial. Each element's result
// does not depend on where it falls.
template <class Fn>
inline void each_vector(Index n, Fn fn) {
  Index i = 0;
  for (; i + kW <= n; i += kW) fn(i, kW);
  if (i < n) fn(i, static_cast<int>(n - i));
}

inline V load_some(const float* p, int count) { return count == kW ? Simd::load(p) : Simd::load_n(p, count); }
inline void store_some(float* p, V v, int count) { count == kW ? Simd::store(p, v) : Simd::store_n(p, v, count); }

// How elements of lines become units: f32 as they are, bf16 in pairs, or bf16 widened where there is no dot product.
struct LinesF32 {
  using Element = float;
  using MulAdd = MulAddF32;
  static constexpr int kUnit = 1;  // elements
  static V along(const float* p, int units) { return load_some(p, units); }
  static V across(const float* p, const float*, int n) { return load_some(p, n); }
  static V broadcast(const float* p) { return Simd::set(*p); }
};
struct LinesBf16Pairs {
  using Element = std::uint16_t;
  using MulAdd = MulAddBf16;
  static constexpr int kUnit = 2;
  static V along(const std::uint16_t* p, int units) { return units == kW ? Simd::load(p) : Simd::load_n(p, units); }
  static V across(const std::uint16_t* p, const std::uint16_t* q, int n) { return Simd::load_pairs(p, q, n); }
  static V broadcast(const std::uint16_t* p) {
    std::uint32_t unit;
    __builtin_memcpy(&unit, p, sizeof unit);
    return Simd::broadcast(&unit);
  }
};
struct LinesBf16Widened {
  using Element = std::uint16_t;
  using MulAdd = MulAddF32;
  static constexpr int kUnit = 1;
  static V along(const std::uint16_t* p, int units) { return Simd::load_bf16(p, units); }
  static V across(const std::uint16_t* p, const std::uint16_t*, int n) { return Simd::load_bf16(p, n); }
  static V broadcast(const std::uint16_t* p) {
    const std::uint32_t unit = static_cast<std::uint32_t>(*p) << 16;
    return Simd::broadcast(&unit);
  }
};
template <bool kDot>
struct LinesBf16Of {
  using type = LinesBf16Widened;
};
template <>
struct LinesBf16Of<true> {
  using type = LinesBf16Pairs;
};
using LinesBf16 = LinesBf16Of<Simd::kBf16Dot>::type;

// Fetches Pieces in equal shares.
struct Fetcher {
  Pieces left;
  Index share, at = 0;  // cache lines per step; bytes into the piece

  Fetcher(Pieces pieces, Index steps)
      : left(pieces), share((pieces.count * ((pieces.length + 63) / 64) + steps - 1) / steps) {}
  void step() {
    for (Index i = 0; i < share && left.count > 0; ++i) {
      __builtin_prefetch(left.begin + at, 0, 2);
      at += 64;
      if (at < left.length) continue;
      at = 0;
      left.begin += left.stride;
      --left.count;
    }
  }
};

// sum[i] goes on over the units of a transposed block, for m <= M rows side by side: a chain alone waits for itself.
template <class Lines, int M, class Element = typename Lines::Element>
inline void dot_block(int m, const Element* const* a, Index p, const V* block, int units, V* sum) {
  if constexpr (M > 1)
    if (m < M) return dot_block<Lines, M - 1>(m, a, p, block, units, sum);
  for (int u = 0; u < units; ++u)
    for (int i = 0; i < M; ++i)
      sum[i] = Lines::MulAdd::apply(Lines::broadcast(a[i] + p + u * Lines::kUnit), block[u], sum[i]);
}

constexpr int kDotRows = 4;
constexpr int kDotGroups = 2;  // groups of kW lines in turn: the chains of one fill the wait for those of the other

template <class Lines, class Element = typename Lines::Element>
void dot_lines(Index k, const Element* const* a, int m, const Element* line, Index stride, Index n, float* c, Index ldc,
               Pieces ahead) {
  constexpr Index kBlock = kW * Lines::kUnit;  // elements along k
  Fetcher fetcher(ahead, (k + kBlock - 1) / kBlock * ((n + kW - 1) / kW));
  for (Index first = 0; first < n; first += kDotGroups * kW) {
    V sum[kDotGroups][kMr];
    for (int g = 0; g < kDotGroups; ++g)
      for (int i = 0; i < m; ++i) sum[g][i] = Simd::zero();
    for (Index p = 0; p < k; p += kBlock) {
      const Index left = (k - p) / Lines::kUnit;
      const int units = left < kW ? static_cast<int>(left) : kW;
      for (int g = 0; g < kDotGroups && first + g * kW < n; ++g) {
        fetcher.step();
        const Index j = first + g * kW;
        V block[kW];
        for (int i = 0; i < kW; ++i) block[i] = j + i < n ? Lines::along(line + (j + i) * stride + p, units) : Simd::zero();
        Simd::transpose(block);
        for (int i = 0; i < m; i += kDotRows) dot_block<Lines, kDotRows>(m - i, a + i, p, block, units, sum[g] + i);
      }
    }
    for (int g = 0; g < kDotGroups && first + g * kW < n; ++g) {
      const Index j = first + g * kW;
      for (int i = 0; i < m; ++i) store_some(c + i * ldc + j, sum[g][i], n - j < kW ? static_cast<int>(n - j) : kW);
    }
  }
}

constexpr int kMixRows = 4;
constexpr int kMixVectors = kW == 16 ? 4 : 2;  // 4 x 4 sums of 32 registers, or 4 x 2 of 16

// M rows by at most kMixVectors vectors of n columns. (Unrolled by order: else GCC 12 keeps the sums in memory.)
template <class Lines, int M, class Element = typename Lines::Element>
void mix_block(Index k, const Element* const* a, const Element* line, Index stride, Index n, float* c, Index ldc,
               bool go_on, Pieces ahead) {
  Fetcher fetcher(ahead, (k + Lines::kUnit - 1) / Lines::kUnit);
  V sum[M][kMixVectors];
  int have[kMixVectors];
  for (int j = 0; j < kMixVectors; ++j) have[j] = n >= (j + 1) * kW ? kW : n > j * kW ? static_cast<int>(n - j * kW) : 0;
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kMixVectors; ++j) sum[i][j] = Simd::load_n(c + i * ldc + j * kW, go_on ? have[j] : 0);
  for (Index p = 0; p < k; p += Lines::kUnit) {
    fetcher.step();
    const Element* first = line + p * stride;
    const Element* second = p + 1 < k ? first + stride : nullptr;
    V b[kMixVectors];
    for (int j = 0; j < kMixVectors; ++j) b[j] = Lines::across(first + j * kW, second ? second + j * kW : nullptr, have[j]);
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) {
      const V av = Lines::broadcast(a[i] + p);
#pragma GCC unroll 4
      for (int j = 0; j < kMixVectors; ++j) sum[i][j] = Lines::MulAdd::apply(av, b[j], sum[i][j]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kMixVectors; ++j) Simd::store_n(c + i * ldc + j * kW, sum[i][j], have[j]);
}

// Calls mix_block<m> for a run-time m.
template <class Lines, int M = kMixRows, class Element = typename Lines::Element>
void mix_rows(int m, Index k, const Element* const* a, const Element* line, Index stride, Index n, float* c, Index ldc,
              bool go_on, Pieces ahead) {
  if (m == M) return mix_block<Lines, M>(k, a, line, stride, n, c, ldc, go_on, ahead);
  if constexpr (M > 1) mix_rows<Lines, M - 1>(m, k, a, line, stride, n, c, ldc, go_on, ahead);
}

template <class Lines, class Element = typename Lines::Element>
void mix_lines(Index k, const Element* const* a, int m, const Element* line, Index stride, Index n, float* c, Index ldc,
               bool go_on, Pieces ahead) {
  for (int row = 0; row < m; row += kMixRows)
    for (Index col = 0; col < n; col += kMixVectors * kW, ahead = Pieces{})
      mix_rows<Lines>(m - row < kMixRows ? m - row : kMixRows, k, a + row, line + col, stride, n - col, c + row * ldc + col,
                      ldc, go_on, ahead);
}

void widen(Index n, const std::uint16_t* x, float* y) {
  each_vector(n, [=](Index i, int count) { store_some(y + i, Simd::load_bf16(x + i, count), count); });
}

void narrow(Index n, const float* x, std::uint16_t* y) {
  each_vector(n, [=](Index i, int count) { Simd::store_bf16(y + i, load_some(x + i, count), count); });
}

// e^x: x = n ln2 + r with |r| <= ln2 / 2, e^r by its Taylor polynomial of degree 7 (the remainder is under
// 2^-26 of the value, below the rounding of the sum). Underflows to 0 below -104, infinite above 88.73.
inline V exp(V x) {
  x = Simd::max(Simd::min(x, Simd::set(89.0f)), Simd::set(-104.0f));
  const V n = Simd::round(Simd::mul(x, Simd::set(1.44269504088896341f)));
  V r = Simd::fma(n, Simd::set(-0.693359375f), x);  // ln2 in two parts, the first with 9 bits: n * it is exact
  r = Simd::fma(n, Simd::set(2.12194440054690583e-4f), r);
  V p = Simd::set(1.0f / 5040);
  p = Simd::fma(p, r, Simd::set(1.0f / 720));
  p = Simd::fma(p, r, Simd::set(1.0f / 120));
  p = Simd::fma(p, r, Simd::set(1.0f / 24));
  p = Simd::fma(p, r, Simd::set(1.0f / 6));
  p = Simd::fma(p, r, Simd::set(0.5f));
  p = Simd::fma(p, r, Simd::set(1.0f));
  p = Simd::fma(p, r, Simd::set(1.0f));
  return Simd::scale(p, n);
}

inline V sigmoid(V x) {
  const V one = Simd::set(1.0f);
  return Simd::div(one, Simd::add(one, exp(Simd::sub(Simd::zero(), x))));
}

void swiglu(Index n, const float* gate, const float* up, float* h) {
  each_vector(n, [=](Index i, int count) {
    const V g = load_some(gate + i, count);
    store_some(h + i, Simd::mul(Simd::mul(g, sigmoid(g)), load_some(up + i, count)), count);
  });
}

void swiglu_backward(Index n, const float* gate, const float* up, const float* dh, float* dgate, float* dup, float* h) {
  each_vector(n, [=](Index i, int count) {
    const V g = load_some(gate + i, count), u = load_some(up + i, count), d = load_some(dh + i, count);
    const V s = sigmoid(g);
    const V silu = Simd::mul(g, s);
    // silu'(g) = s + g s (1 - s)
    const V slope = Simd::fma(silu, Simd::sub(Simd::set(1.0f), s), s);
    store_some(h + i, Simd::mul(silu, u), count);
    store_some(dup + i, Simd::mul(d, silu), count);
    store_some(dgate + i, Simd::mul(Simd::mul(d, u), slope), count);
  });
}

void add_scaled(Index n, float scale, const float* x, float* y) {
  const V s = Simd::set(scale);
  each_vector(n, [=](Index i, int count) {
    store_some(y + i, Simd::fma(s, load_some(x + i, count), load_some(y + i, count)), count);
  });
}

void scale(Index n, float factor, const float* x, float* y) {
  const V s = Simd::set(factor);
  each_vector(n, [=](Index i, int count) { store_some(y + i, Simd::mul(s, load_some(x + i, count)), count); });
}

float dot(Index n, const float* x, const float* y) {
  V sum = Simd::zero();
  each_vector(n, [&](Index i, int count) { sum = Simd::fma(load_some(x + i, count), load_some(y + i, count), sum); });
  return Simd::sum(sum);
}

void multiply(Index n, float scale, const float* x, const float* y, float* z) {
  const V s = Simd::set(scale);
  each_vector(n, [=](Index i, int count) {
    store_some(z + i, Simd::mul(Simd::mul(s, load_some(x + i, count)), load_some(y + i, count)), count);
  });
}

void add_multiplied(Index n, float scale, const float* x, const float* y, float* z) {
  const V s = Simd::set(scale);
  each_vector(n, [=](Index i, int count) {
    const V product = Simd::mul(s, load_some(x + i, count));
    store_some(z + i, Simd::fma(product, load_some(y + i, count), load_some(z + i, count)), count);
  });
}

float largest(Index n, const float* x) {
  float lane[kW], best = -__builtin_inff();
  V most = Simd::set(best);
  Index i = 0;
  for (; i + kW <= n; i += kW) most = Simd::max(most, Simd::load(x + i));
  Simd::store(lane, most);
  for (int j = 0; j < kW; ++j) best = lane[j] > best ? lane[j] : best;
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

float exp_shifted(Index n, float scale, float shift, const float* x, float* y) {
  const V factor = Simd::set(scale), zero = Simd::set(shift);
  V sum = Simd::zero();
  each_vector(n, [&](Index i, int count) {
    const V e = exp(Simd::mul(factor, Simd::sub(load_some(x + i, count), zero)));
    store_some(y + i, e, count);
    sum = Simd::add(sum, count == kW ? e : Simd::load_n(y + i, count));  // lanes past the end hold e^(-scale * shift)
  });
  return Simd::sum(sum);
}

void rotate(Index n, const float* cos, const float* sin, float sign, float* a, float* b) {
  const V forward = Simd::set(sign), backward = Simd::set(-sign);
  each_vector(n, [=](Index i, int count) {
    const V c = load_some(cos + i, count), s = load_some(sin + i, count);
    const V first = load_some(a + i, count), second = load_some(b + i, count);
    store_some(a + i, Simd::fma(first, c, Simd::mul(second, Simd::mul(backward, s))), count);
    store_some(b + i, Simd::fma(second, c, Simd::mul(first, Simd::mul(forward, s))), count);
  });
}

void softmax_backward(Index n, float scale, float mean, const float* p, const float* dp, float* ds) {
  const V factor = Simd::set(scale), zero = Simd::set(mean);
  each_vector(n, [=](Index i, int count) {
    const V slope = Simd::sub(load_some(dp + i, count), zero);
    store_some(ds + i, Simd::mul(Simd::mul(factor, load_some(p + i, count)), slope), count);
  });
}

void softmax(Index n, const float* x, float* y) {
  const V shift = Simd::set(largest(n, x));
  each_vector(n, [=](Index i, int count) { store_some(y + i, exp(Simd::sub(load_some(x + i, count), shift)), count); });
  double total = 0;
  for (Index i = 0; i < n; ++i) total += y[i];
  const V scale = Simd::set(static_cast<float>(1.0 / total));
  each_vector(n, [=](Index i, int count) { store_some(y + i, Simd::mul(load_some(y + i, count), scale), count); });
}

void sigmoid_all(Index n, const float* x, float* y) {
  each_vector(n, [=](Index i, int count) { store_some(y + i, sigmoid(load_some(x + i, count)), count); });
}

void adamw(Index n, const AdamStep& s, float* gradient, float* m, float* v, float* w, std::uint16_t* stored) {
  const V scale = Simd::set(s.grad_scale), beta1 = Simd::set(s.beta1), beta2 = Simd::set(s.beta2);
  const V new1 = Simd::set(1 - s.beta1), new2 = Simd::set(1 - s.beta2), keep = Simd::set(s.keep);
  const V rate = Simd::set(-s.rate), root_scale = Simd::set(s.root_scale), epsilon = Simd::set(s.epsilon);
  each_vector(n, [=](Index i, int count) {
    const V g = Simd::mul(scale, load_some(gradient + i, count));
    const V first = Simd::fma(beta1, load_some(m + i, count), Simd::mul(new1, g));
    const V second = Simd::fma(beta2, load_some(v + i, count), Simd::mul(new2, Simd::mul(g, g)));
    const V step = Simd::div(first, Simd::fma(root_scale, Simd::sqrt(second), epsilon));
    const V now = Simd::fma(rate, step, Simd::mul(keep, load_some(w + i, count)));
    store_some(gradient + i, Simd::zero(), count);
    store_some(m + i, first, count);
    store_some(v + i, second, count);
    store_some(w + i, now, count);
    if (stored) Simd::store_bf16(stored + i, now, count);
  });
}

template <class MulAdd, int kUnit>
double peak(Index rounds, float* sink) {
  constexpr int kChains = 12;  // enough to hide the latency of a multiply-add
  V sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = Simd::set(static_cast<float>(i));
  const V a = Simd::set(1e-9f), b = Simd::set(1e-9f);
  for (Index r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) sum[i] = MulAdd::apply(a, b, sum[i]);
  V total = sum[0];
  for (int i = 1; i < kChains; ++i) total = Simd::add(total, sum[i]);
  *sink = Simd::sum(total);
  return 2.0 * kUnit * kW * kChains * static_cast<double>(rounds);
}

float read(Index n, const float* x) {
  V sum[4] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  Index i = 0;
  for (; i + 4 * kW <= n; i += 4 * kW)
    for (int j = 0; j < 4; ++j) sum[j] = Simd::add(sum[j], Simd::load(x + i + j * kW));
  for (; i < n; i += kW) sum[0] = Simd::add(sum[0], load_some(x + i, n - i < kW ? static_cast<int>(n - i) : kW));
  return Simd::sum(Simd::add(Simd::add(sum[0], sum[1]), Simd::add(sum[2], sum[3])));
}

const KernelTable kTable = {
    .name = Simd::kName,
    .mr = kMr,
    .nr = kNr,
    .bf16_dot = Simd::kBf16Dot,
    .tile_f32 = tile<MulAddF32>,
    .tile_bf16 = Simd::kBf16Dot ? tile<MulAddBf16> : nullptr,
    .few_lines = kW,
    .few_f32 = few<MulAddF32>,
    .few_bf16 = Simd::kBf16Dot ? few<MulAddBf16> : nullptr,
    .pack_lines = pack_lines,
    .pack_across_f32 = pack_across_f32,
    .pack_across_bf16 = pack_across_bf16,
    .dot_lines_f32 = dot_lines<LinesF32>,
    .dot_lines_bf16 = dot_lines<LinesBf16>,
    .mix_lines_f32 = mix_lines<LinesF32>,
    .mix_lines_bf16 = mix_lines<LinesBf16>,
    .widen = widen,
    .narrow = narrow,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .add_scaled = add_scaled,
    .scale = scale,
    .dot = dot,
    .multiply = multiply,
    .add_multiplied = add_multiplied,
    .softmax = softmax,
    .softmax_backward = softmax_backward,
    .sigmoid = sigmoid_all,
    .adamw = adamw,
    .largest = largest,
    .exp_shifted = exp_shifted,
    .rotate = rotate,
    .peak_f32 = peak<MulAddF32, 1>,
    .peak_bf16 = Simd::kBf16Dot ? peak<MulAddBf16, 2> : peak<MulAddF32, 1>,
    .read = read,
};
