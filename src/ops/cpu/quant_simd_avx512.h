// Sixteen lanes in an AVX-512 register. (Included inside the namespace of a target file, after <immintrin.h>.)

struct Simd {
  static constexpr int kMr = 6;  // 12 integer and 12 f32 sums, two columns with their scales, two at work
  static constexpr int kNv = 2;
  static constexpr bool kSignedCodes = false;

  using F = __m512;
  using I = __m512i;
  using B = __m512i;

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  DSMOE_MASKED static void store_n(float* p, F v, int n) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
  }
  static F first_n(F v, int n) { return _mm512_maskz_mov_ps(static_cast<__mmask16>((1u << n) - 1), v); }  // the rest 0
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
  static F max_abs(F a, F b) { return _mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)); }
  static float largest(F a) { return _mm512_reduce_max_ps(a); }
  static float sum(F a) { return _mm512_reduce_add_ps(a); }

  static I load_ints(const std::int32_t* p) { return _mm512_loadu_si512(p); }
  static I set_int(std::int32_t x) { return _mm512_set1_epi32(x); }
  static I add_ints(I a, I b) { return _mm512_add_epi32(a, b); }
  template <int kBits>
  static I shift_right_ints(I a) {
    return _mm512_srai_epi32(a, kBits);
  }
  static I to_int(F a) { return _mm512_cvtps_epi32(a); }  // to nearest even
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static std::int32_t sum_ints(I a) { return _mm512_reduce_add_epi32(a); }
  static void store_bytes(std::int8_t* to, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a));
  }

  static I widen_codes(const char* p) {  // sixteen signed bytes
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F from_halves(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
    return _mm512_cvtph_ps(_mm256_set_epi64x(ll(d), ll(c), ll(b), ll(a)));
  }
  static F load_halves(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  // Sixteen halves, each kWords words of 16 bits after the one before, from 32 * kWords readable bytes. Two registers hold
  // those of several neighbours, and one permutation takes them out.
  template <int kWords>
  struct EveryWord {
    static constexpr int kEach = 63 / kWords + 1, kGroups = (15 + kEach) / kEach;  // halves in two registers; pairs of them
    static constexpr int first(int group) { return 2 * group * kEach * kWords; }   // byte where the pair's first begins
    static constexpr int second(int group) {
      return first(group) + 128 <= 32 * kWords ? first(group) + 64 : 32 * kWords - 64;
    }
    short index[32] = {};

    constexpr EveryWord() {
      for (int lane = 0; lane < 16; ++lane) {
        const int group = lane / kEach, word = lane % kEach * kWords;
        index[lane] = static_cast<short>(word < 32 ? word : 32 + word - (second(group) - first(group)) / 2);
      }
    }
  };
  template <int kWords>
  static F halves_every(const void* p) {
    using Words = EveryWord<kWords>;
    alignas(64) static constexpr Words kWhere;
    const auto* bytes = static_cast<const char*>(p);
    const __m512i index = _mm512_load_si512(kWhere.index);
    __m256i all = _mm256_setzero_si256();
    for (int g = 0; g < Words::kGroups; ++g) {
      const __m256i here = _mm512_castsi512_si256(_mm512_permutex2var_epi16(
          _mm512_loadu_si512(bytes + Words::first(g)), index, _mm512_loadu_si512(bytes + Words::second(g))));
      all = _mm256_mask_mov_epi16(all, static_cast<__mmask16>(0xffffu << g * Words::kEach), here);
    }
    return _mm512_cvtph_ps(all);
  }
  // Two blocks that begin with two halves and the 12 bytes of ops/quantize_k.h: eight scales and eight minimums of each.
  static void six_bits(const void* a, const void* b, F& scales, F& minimums) {
    const __m128i head[2] = {bytes16(a), bytes16(b)};
    const __m256i both = _mm256_set_m128i(head[1], head[0]);
    const auto shuffled = [&](__m128i where) { return _mm256_shuffle_epi8(both, _mm256_broadcastsi128_si256(where)); };
    const auto masked = [](__m256i x, __m128i mask) { return _mm256_and_si256(x, _mm256_broadcastsi128_si256(mask)); };
    const __m256i low = _mm256_srlv_epi32(shuffled(_mm_setr_epi32(0x07060504, 0x0f0e0d0c, 0x0b0a0908, 0x0f0e0d0c)),
                                          _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0, 0, 4)));
    const __m256i high = _mm256_srli_epi32(shuffled(_mm_setr_epi32(-1, 0x07060504, -1, 0x0b0a0908)), 2);
    const __m256i six = _mm256_permute4x64_epi64(
        _mm256_or_si256(masked(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
                        masked(high, _mm_set1_epi32(0x30303030))),
        0xd8);
    const __m512 four = _mm512_cvtph_ps(_mm256_castsi128_si256(_mm_unpacklo_epi32(head[0], head[1])));
    const auto times = [&](__m128i bytes, int lane) {
      const __m512i from = _mm512_inserti64x4(_mm512_set1_epi32(lane), _mm256_set1_epi32(lane + 2), 1);
      return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), _mm512_permutexvar_ps(from, four));
    };
    scales = times(_mm256_castsi256_si128(six), 0);
    minimums = times(_mm256_extracti128_si256(six, 1), 1);
  }
  static F from_bytes(std::uint64_t a, std::uint64_t b) {  // without a sign
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_set_epi64x(ll(b), ll(a))));
  }
  // Sixteen pairs of signed bytes: the even ones, or the odd ones.
  template <bool kOdd>
  static F from_pairs(const std::int8_t* a, const std::int8_t* b) {
    const __m512i pairs = _mm512_cvtepu16_epi32(_mm256_set_m128i(bytes16(b), bytes16(a)));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, kOdd ? 16 : 24), 24));
  }

  static B load_bytes(const void* p) { return _mm512_loadu_si512(p); }
  static void store_bytes64(void* p, B v) { _mm512_storeu_si512(p, v); }
  // By way of two registers of half the width, whose inserts are cheaper.
  static B quarters(const void* a, const void* b, const void* c, const void* d) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(bytes16(b), bytes16(a))),
                              _mm256_set_m128i(bytes16(d), bytes16(c)), 1);
  }
  static B set_byte(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
  static B and_(B a, B b) { return _mm512_and_si512(a, b); }
  static B or_(B a, B b) { return _mm512_or_si512(a, b); }
  static B xor_(B a, B b) { return _mm512_xor_si512(a, b); }
  static B add_bytes(B a, B b) { return _mm512_add_epi8(a, b); }
  // Shifts of 16-bit words: bits cross from byte to byte, for the caller to mask.
  template <int kBits>
  static B right(B a) {
    return _mm512_srli_epi16(a, kBits);
  }
  template <int kBits>
  static B left(B a) {
    return _mm512_slli_epi16(a, kBits);
  }
  // Byte i is 16 where bit i is set, bits in words of 16.
  static B bit16(std::uint64_t bits) { return _mm512_maskz_mov_epi8(bits, _mm512_set1_epi8(16)); }

  static B broadcast4(const std::int8_t* p) {
    std::int32_t x;
    __builtin_memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
  }
  // Four products of bytes without a sign, at most kMost, and bytes with one are added to each lane.
  template <int kMost>
  static I dot(I sum, B u, B s) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sum, u, s);
#else
    if constexpr (kMost < 128)  // two products fit 16 bits
      return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1)));
    const __m512i even =
        _mm512_madd_epi16(_mm512_and_si512(u, _mm512_set1_epi16(255)), _mm512_srai_epi16(_mm512_slli_epi16(s, 8), 8));
    const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(u, 8), _mm512_srai_epi16(s, 8));
    return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
#endif
  }
  // Lane 4j + i: the sum of the four lanes of quarter j of vector i.
  static I sum_quarters(I a, I b, I c, I d) {
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }

  // 16 bytes of 16 rows: u[i] holds bytes 4i to 4i + 3 of each.
  static void interleave(const std::uint8_t* const* row, Index at, B* u) {
    __m512i v[4];
    for (int i = 0; i < 4; ++i) v[i] = quarters(row[i] + at, row[i + 4] + at, row[i + 8] + at, row[i + 12] + at);
    const __m512i low01 = _mm512_unpacklo_epi32(v[0], v[1]), high01 = _mm512_unpackhi_epi32(v[0], v[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(v[2], v[3]), high23 = _mm512_unpackhi_epi32(v[2], v[3]);
    u[0] = _mm512_unpacklo_epi64(low01, low23);
    u[1] = _mm512_unpackhi_epi64(low01, low23);
    u[2] = _mm512_unpacklo_epi64(high01, high23);
    u[3] = _mm512_unpackhi_epi64(high01, high23);
  }
  // Bits first to first + 3 of every lane as its four bytes, 16 or 0; first is a multiple of 4.
  static B four_bits(I lanes, int first) {
    const __m512i byte = _mm512_add_epi8(_mm512_set1_epi32(0x01010101 * (first / 8)),
                                         _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c)));
    const __m512i bit = _mm512_set1_epi32(first % 8 == 0 ? 0x08040201 : static_cast<int>(0x80402010));
    return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(_mm512_shuffle_epi8(lanes, byte), bit), _mm512_set1_epi8(16));
  }

  // Row i of m becomes column i.
  static void transpose(const float (*m)[16], F* out) {
    __m512 r[16], t[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_load_ps(m[i]);
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      r[i] = pairs_low(t[i], t[i + 2]);
      r[i + 1] = pairs_high(t[i], t[i + 2]);
      r[i + 2] = pairs_low(t[i + 1], t[i + 3]);
      r[i + 3] = pairs_high(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 16; i += 8) {
      for (int j = 0; j < 4; ++j) {
        t[i + j] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0x88);
        t[i + j + 4] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0xdd);
      }
    }
    for (int j = 0; j < 8; ++j) {
      out[j] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88);
      out[j + 8] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd);
    }
  }

 private:
  static long long ll(std::uint64_t x) { return static_cast<long long>(x); }
  static __m128i bytes16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static __m512 pairs_low(__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static __m512 pairs_high(__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};
