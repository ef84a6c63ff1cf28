// Sixteen floats in an AVX-512 register. The flag says whether dot products of bf16 pairs may be used.
// (Included inside the namespace of a target file, after <immintrin.h>.)

using V = __m512;

struct Simd {
  static constexpr int kWidth = 16;
  static constexpr int kMr = 14;  // 14 x 2 sums + 2 columns + 1 broadcast = 31 of 32 registers
  static constexpr int kNv = 2;
#ifdef __AVX512BF16__
  static constexpr bool kBf16Dot = true;
  static constexpr const char* kName = "avx512bf16";
#else
  static constexpr bool kBf16Dot = false;
  static constexpr const char* kName = "avx512";
#endif

  static __mmask16 mask(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static V zero() { return _mm512_setzero_ps(); }
  static V set(float x) { return _mm512_set1_ps(x); }
  static V load(const void* p) { return _mm512_loadu_ps(p); }
  DSMOE_MASKED static V load_n(const void* p, int n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static void store(void* p, V v) { _mm512_storeu_ps(p, v); }
  DSMOE_MASKED static void store_n(void* p, V v, int n) { _mm512_mask_storeu_ps(p, mask(n), v); }
  static V broadcast(const std::uint32_t* p) { return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*p))); }

  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V div(V a, V b) { return _mm512_div_ps(a, b); }
  static V sqrt(V a) { return _mm512_sqrt_ps(a); }
  static V min(V a, V b) { return _mm512_min_ps(a, b); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V round(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static V scale(V a, V n) { return _mm512_scalef_ps(a, n); }  // a * 2^n
  static float sum(V a) { return _mm512_reduce_add_ps(a); }

  static V dot_bf16([[maybe_unused]] V a, [[maybe_unused]] V b, V c) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#else
    return c;
#endif
  }

  // bf16 elements a[i] and b[i] as the low and high half of unit i; b may be null for zero.
  DSMOE_MASKED static V load_pairs(const std::uint16_t* a, const std::uint16_t* b, int n) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask(n), a));
    const __m512i high = b ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask(n), b)) : _mm512_setzero_si512();
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
  DSMOE_MASKED static V load_bf16(const std::uint16_t* p, int n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask(n), p)), 16));
  }
  DSMOE_MASKED static void store_bf16(std::uint16_t* p, V v, int n) {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    _mm256_mask_storeu_epi16(p, mask(n), _mm512_cvtepi32_epi16(r));
  }

  static void transpose(V* r) {
    V t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      r[i] = unpack_pairs_low(t[i], t[i + 2]);
      r[i + 1] = unpack_pairs_high(t[i], t[i + 2]);
      r[i + 2] = unpack_pairs_low(t[i + 1], t[i + 3]);
      r[i + 3] = unpack_pairs_high(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 16; i += 8) {
      for (int j = 0; j < 4; ++j) {
        t[i + j] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0x88);
        t[i + j + 4] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0xdd);
      }
    }
    for (int j = 0; j < 8; ++j) {
      r[j] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88);
      r[j + 8] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd);
    }
  }

 private:
  static V unpack_pairs_low(V a, V b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static V unpack_pairs_high(V a, V b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};
