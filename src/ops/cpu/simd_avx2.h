// Eight floats in an AVX register, with FMA. (Included inside the namespace of a target file.)

using V = __m256;

struct Simd {
  static constexpr int kWidth = 8;
  static constexpr int kMr = 6;  // 6 x 2 sums + 2 columns + 1 broadcast = 15 of 16 registers
  static constexpr int kNv = 2;
  static constexpr bool kBf16Dot = false;
  static constexpr const char* kName = "avx2";

  static __m256i mask(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
  static V zero() { return _mm256_setzero_ps(); }
  static V set(float x) { return _mm256_set1_ps(x); }
  static V load(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static V load_n(const void* p, int n) { return _mm256_maskload_ps(static_cast<const float*>(p), mask(n)); }
  static void store(void* p, V v) { _mm256_storeu_ps(static_cast<float*>(p), v); }
  static void store_n(void* p, V v, int n) { _mm256_maskstore_ps(static_cast<float*>(p), mask(n), v); }
  static V broadcast(const std::uint32_t* p) { return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(*p))); }

  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V div(V a, V b) { return _mm256_div_ps(a, b); }
  static V sqrt(V a) { return _mm256_sqrt_ps(a); }
  static V min(V a, V b) { return _mm256_min_ps(a, b); }
  static V max(V a, V b) { return _mm256_max_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V round(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // a * 2^n in two steps, since n may lie past the exponents of normal numbers on both sides.
  static V scale(V a, V n) {
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    return mul(mul(a, power(half)), power(_mm256_sub_epi32(whole, half)));
  }
  static float sum(V a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
  }
  static V dot_bf16(V, V, V c) { return c; }  // never called: kBf16Dot is false

  static V load_pairs(const std::uint16_t* a, const std::uint16_t* b, int n) {
    const __m256i high = b ? words(b, n) : _mm256_setzero_si256();
    return _mm256_castsi256_ps(_mm256_or_si256(words(a, n), _mm256_slli_epi32(high, 16)));
  }
  static V load_bf16(const std::uint16_t* p, int n) { return _mm256_castsi256_ps(_mm256_slli_epi32(words(p, n), 16)); }
  static void store_bf16(std::uint16_t* p, V v, int n) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i top = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i r = _mm256_blendv_epi8(rounded, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    if (n == kWidth) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
    } else {
      alignas(16) std::uint16_t all[8];
      _mm_store_si128(reinterpret_cast<__m128i*>(all), packed);
      for (int i = 0; i < n; ++i) p[i] = all[i];
    }
  }

  static void transpose(V* r) {
    V t[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int j = 0; j < 4; ++j) {
      t[j] = _mm256_permute2f128_ps(r[j], r[j + 4], 0x20);
      t[j + 4] = _mm256_permute2f128_ps(r[j], r[j + 4], 0x31);
    }
    for (int j = 0; j < 8; ++j) r[j] = t[j];
  }

 private:
  static V power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static __m256i words(const std::uint16_t* p, int n) {
    if (n == kWidth) return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    alignas(16) std::uint16_t all[8] = {};
    for (int i = 0; i < n; ++i) all[i] = p[i];
    return _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(all)));
  }
};
