// Sixteen lanes as two AVX registers, with FMA and F16C. (Included inside the namespace of a target file, after
// <immintrin.h>.)

struct Simd {
  static constexpr int kMr = 2;
  static constexpr int kNv = 1;
#ifdef __AVXVNNI__
  static constexpr bool kSignedCodes = false;
#else
  static constexpr bool kSignedCodes = true;  // of Q8_0
#endif

  struct F {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };
  using B = I;

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v.a), _mm256_storeu_ps(p + 8, v.b); }
  static void store_n(float* p, F v, int n) {
    float all[16];
    store(all, v);
    for (int i = 0; i < n; ++i) p[i] = all[i];
  }
  static F first_n(F v, int n) {  // the rest 0
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    const auto keep = [&](__m256 x, int first) {
      return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - first), lane)));
    };
    return {keep(v.a, 0), keep(v.b, 8)};
  }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static F fnma(F x, F y, F z) { return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)}; }
  static F max_abs(F x, F y) { return {_mm256_max_ps(abs(x.a), abs(y.a)), _mm256_max_ps(abs(x.b), abs(y.b))}; }
  static float largest(F x) {
    const __m256 m = _mm256_max_ps(x.a, x.b);
    __m128 r = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    r = _mm_max_ps(r, _mm_movehl_ps(r, r));
    return _mm_cvtss_f32(_mm_max_ss(r, _mm_shuffle_ps(r, r, 1)));
  }
  static float sum(F x) {
    const __m256 m = _mm256_add_ps(x.a, x.b);
    __m128 r = _mm_add_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    r = _mm_add_ps(r, _mm_movehl_ps(r, r));
    return _mm_cvtss_f32(_mm_add_ss(r, _mm_shuffle_ps(r, r, 1)));
  }

  static I load_ints(const std::int32_t* p) { return load_bytes(p); }
  static I set_int(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static I add_ints(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  template <int kBits>
  static I shift_right_ints(I x) {
    return {_mm256_srai_epi32(x.a, kBits), _mm256_srai_epi32(x.b, kBits)};
  }
  static I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
  static F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static std::int32_t sum_ints(I x) {
    const __m256i m = _mm256_add_epi32(x.a, x.b);
    __m128i r = _mm_add_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    r = _mm_add_epi32(r, _mm_unpackhi_epi64(r, r));
    return _mm_cvtsi128_si32(_mm_add_epi32(r, _mm_shuffle_epi32(r, 1)));
  }
  static void store_bytes(std::int8_t* to, I x) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }

  static I widen_codes(const char* p) {  // sixteen signed bytes
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi8_epi32(codes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes))};
  }
  static F from_halves(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
    return {_mm256_cvtph_ps(_mm_set_epi64x(ll(b), ll(a))), _mm256_cvtph_ps(_mm_set_epi64x(ll(d), ll(c)))};
  }
  static F load_halves(const void* p) {
    const auto* v = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(v)), _mm256_cvtph_ps(_mm_loadu_si128(v + 1))};
  }
  static F from_bytes(std::uint64_t a, std::uint64_t b) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(ll(a)))),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(ll(b))))};
  }
  template <bool kOdd>
  static F from_pairs(const std::int8_t* a, const std::int8_t* b) {
    return {signed_bytes<kOdd>(a), signed_bytes<kOdd>(b)};
  }

  static B load_bytes(const void* p) {
    const auto* v = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
  }
  static void store_bytes64(void* p, B x) {
    auto* v = static_cast<__m256i*>(p);
    _mm256_storeu_si256(v, x.a), _mm256_storeu_si256(v + 1, x.b);
  }
  static B quarters(const void* a, const void* b, const void* c, const void* d) {
    return {_mm256_set_m128i(bytes16(b), bytes16(a)), _mm256_set_m128i(bytes16(d), bytes16(c))};
  }
  static B set_byte(int x) { return {_mm256_set1_epi8(static_cast<char>(x)), _mm256_set1_epi8(static_cast<char>(x))}; }
  static B and_(B x, B y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
  static B or_(B x, B y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
  static B xor_(B x, B y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
  static B add_bytes(B x, B y) { return {_mm256_add_epi8(x.a, y.a), _mm256_add_epi8(x.b, y.b)}; }
  template <int kBits>
  static B right(B x) {
    return {_mm256_srli_epi16(x.a, kBits), _mm256_srli_epi16(x.b, kBits)};
  }
  template <int kBits>
  static B left(B x) {
    return {_mm256_slli_epi16(x.a, kBits), _mm256_slli_epi16(x.b, kBits)};
  }
  static B bit16(std::uint64_t bits) {
    return {spread(static_cast<std::uint32_t>(bits)), spread(static_cast<std::uint32_t>(bits >> 32))};
  }

  static B broadcast4(const std::int8_t* p) {
    std::int32_t x;
    __builtin_memcpy(&x, p, 4);
    return set_int(x);
  }
  template <int kMost>
  static I dot(I sum, B u, B s) {
    return {dot<kMost>(sum.a, u.a, s.a), dot<kMost>(sum.b, u.b, s.b)};
  }
  static I sum_quarters(I a, I b, I c, I d) { return {sum_quarters(a.a, b.a, c.a, d.a), sum_quarters(a.b, b.b, c.b, d.b)}; }

  static void interleave(const std::uint8_t* const* row, Index at, B* u) {
    alignas(32) std::uint8_t all[4][64];
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 4; ++j) __builtin_memcpy(all[j] + 4 * i, row[i] + at + 4 * j, 4);
    for (int j = 0; j < 4; ++j) u[j] = load_bytes(all[j]);
  }
  static B four_bits(I lanes, int first) { return {four_bits(lanes.a, first), four_bits(lanes.b, first)}; }
  static void transpose(const float (*m)[16], F* out) {
    float line[16];
    for (int j = 0; j < 16; ++j) {
      for (int i = 0; i < 16; ++i) line[i] = m[i][j];
      out[j] = load(line);
    }
  }

 private:
  static long long ll(std::uint64_t x) { return static_cast<long long>(x); }
  static __m256 abs(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  static __m128i bytes16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  template <bool kOdd>
  static __m256 signed_bytes(const std::int8_t* p) {
    const __m256i pairs = _mm256_cvtepu16_epi32(bytes16(p));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(pairs, kOdd ? 16 : 24), 24));
  }
  static __m256i spread(std::uint32_t bits) {
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i one = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), which);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, one), one), _mm256_set1_epi8(16));
  }
  static __m256i four_bits(__m256i lanes, int first) {
    const __m256i lane = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    const __m256i byte = _mm256_add_epi8(_mm256_set1_epi32(0x01010101 * (first / 8)), lane);
    const __m256i bit = _mm256_set1_epi32(first % 8 == 0 ? 0x08040201 : static_cast<int>(0x80402010));
    const __m256i there = _mm256_and_si256(_mm256_shuffle_epi8(lanes, byte), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(there, bit), _mm256_set1_epi8(16));
  }
#ifdef __AVXVNNI__
  template <int kMost>
  static __m256i dot(__m256i sum, __m256i u, __m256i s) {
    return _mm256_dpbusd_avx_epi32(sum, u, s);
  }
#else
  // The instruction adds two products in 16 bits: those of codes under 128 fit. Of larger ones the sign goes to the other
  // factor, since 2 * 128 * 127 fits too.
  template <int kMost>
  static __m256i dot(__m256i sum, __m256i u, __m256i s) {
    const __m256i pairs =
        kMost < 128 ? _mm256_maddubs_epi16(u, s) : _mm256_maddubs_epi16(_mm256_abs_epi8(u), _mm256_sign_epi8(s, u));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
#endif
  static __m256i sum_quarters(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  }
};
