#include "support/amx_products.h"

#if defined(__x86_64__) && defined(__linux__)
#include <immintrin.h>

#include <cstring>

namespace dsmoe::test {

// For single functions, so that the headers above are compiled for every processor.
#define DSMOE_AVX2 __attribute__((target("avx2,fma")))

namespace {

DSMOE_AVX2 inline __m256i load(const std::uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }

// Of every four bytes the first and third, or the second and fourth, as 16 bits.
template <bool kSigned>
DSMOE_AVX2 inline __m256i even_bytes(__m256i x) {
  const __m256i up = _mm256_slli_epi16(x, 8);
  return kSigned ? _mm256_srai_epi16(up, 8) : _mm256_srli_epi16(up, 8);
}
template <bool kSigned>
DSMOE_AVX2 inline __m256i odd_bytes(__m256i x) {
  return kSigned ? _mm256_srai_epi16(x, 8) : _mm256_srli_epi16(x, 8);
}

// Products of bytes fit in 16 bits each and in 32 bits by pairs, with room: only the sum over all wraps around.
template <bool kSignedA, bool kSignedB>
DSMOE_AVX2 void product_of_bytes(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  __m256i even[kTileRows][2], odd[kTileRows][2];
  for (int k = 0; k < depth; ++k)
    for (int half = 0; half < 2; ++half) {
      even[k][half] = even_bytes<kSignedB>(load(b[k] + 32 * half));
      odd[k][half] = odd_bytes<kSignedB>(load(b[k] + 32 * half));
    }
  for (int m = 0; m < rows; ++m) {
    __m256i sum[2] = {load(c[m]), load(c[m] + 32)};
    for (int k = 0; k < depth; ++k) {
      std::int32_t four;
      std::memcpy(&four, a[m] + 4 * k, sizeof four);
      const __m256i all = _mm256_set1_epi32(four);
      const __m256i a_even = even_bytes<kSignedA>(all), a_odd = odd_bytes<kSignedA>(all);
      for (int half = 0; half < 2; ++half) {
        const __m256i pairs = _mm256_madd_epi16(a_even, even[k][half]);
        sum[half] = _mm256_add_epi32(sum[half], _mm256_add_epi32(pairs, _mm256_madd_epi16(a_odd, odd[k][half])));
      }
    }
    for (int half = 0; half < 2; ++half) _mm256_store_si256(reinterpret_cast<__m256i*>(c[m] + 32 * half), sum[half]);
  }
}

// The first and the second bf16 of every pair as f32.
DSMOE_AVX2 inline __m256 even_bf16(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
DSMOE_AVX2 inline __m256 odd_bf16(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

// A function of its own, which is not merged with its caller, since compilers know nothing of the register that it sets.
[[gnu::noinline]] DSMOE_AVX2 void sum_products(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  for (int m = 0; m < rows; ++m) {
    __m256 even[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, odd[2] = {even[0], even[1]};
    for (int k = 0; k < depth; ++k) {
      std::int32_t pair;
      std::memcpy(&pair, a[m] + 4 * k, sizeof pair);
      const __m256i all = _mm256_set1_epi32(pair);
      const __m256 a_even = even_bf16(all), a_odd = odd_bf16(all);
      for (int half = 0; half < 2; ++half) {
        const __m256i b_pairs = load(b[k] + 32 * half);
        even[half] = _mm256_fmadd_ps(a_even, even_bf16(b_pairs), even[half]);
        odd[half] = _mm256_fmadd_ps(a_odd, odd_bf16(b_pairs), odd[half]);
      }
    }
    for (int half = 0; half < 2; ++half) {
      float* const to = reinterpret_cast<float*>(c[m] + 32 * half);
      _mm256_store_ps(to, _mm256_add_ps(_mm256_load_ps(to), _mm256_add_ps(even[half], odd[half])));
    }
  }
}

}  // namespace

void product_ss(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  product_of_bytes<true, true>(c, a, b, rows, depth);
}
void product_su(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  product_of_bytes<true, false>(c, a, b, rows, depth);
}
void product_us(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  product_of_bytes<false, true>(c, a, b, rows, depth);
}
void product_uu(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  product_of_bytes<false, false>(c, a, b, rows, depth);
}

// The pseudocode of TDPBF16PS in volume 2 of Intel's manual: for every row and column two chains of fused multiply-adds
// from zero, of the even and of the odd numbers, over the whole depth; their sum; and that added to C. (The guide to
// intrinsics has another one, which adds every product to C; processors do what the manual says.) All of it with subnormal
// operands and results as zeros, rounded to nearest even, with no exceptions, whatever MXCSR says. So the processor's own
// fused multiply-add does it with MXCSR set so: then what a zero replaces and when is the processor's choice too, which is
// to look after rounding, as if exponents had no end: a sum of 2^-126 - 2^-150 becomes zero, while without this it rounds
// to 2^-126. Which of several NaNs comes through Intel does not say, nor does this.
void product_bf16(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  constexpr unsigned kZeroForSubnormalResults = 1u << 15, kAllMasked = 0x3fu << 7, kZeroForSubnormalOperands = 1u << 6;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kZeroForSubnormalResults | kAllMasked | kZeroForSubnormalOperands);
  sum_products(c, a, b, rows, depth);
  _mm_setcsr(before);
}

}  // namespace dsmoe::test
#endif
