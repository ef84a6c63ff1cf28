// One thread's matrix product c[m, n] (+)= a[m, k] · b[k, n] over operands given as lines of memory, so that
// gathering, slicing and transposing are choices of pointers and never copies of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dsmoe/dtype.h"
#include "ops/cpu/kernels.h"

namespace dsmoe::cpu {

// Lines run along the summed dimension k: one line per row of a (or column of b), element (i, k) = line[i][k].
// Lines run across it: one line per k, element (i, k) = line[k][i].
enum class Lines { kAlong, kAcross };

template <class T>
struct Operand {
  const T* const* line;
  Lines lines;
};

// The rule for a sum over k, which fixes the bits of every result: chains over blocks of kDepth units
// (f32 numbers, or bf16 pairs), and the blocks' sums added in order. Where the processor multiplies tiles of bf16, the
// steps of a chain are theirs (bf16_tiles.h).
inline constexpr Index kDepth = 256;
// Rows and columns of one block: what is packed of a and fetched of b stays in the second-level cache.
inline constexpr Index kMaxRows = 168;
inline constexpr Index kMaxCols = 256;
// Rows of one task: b is packed once for three blocks of them.
inline constexpr Index kTaskRows = 3 * kMaxRows;

// Bytes of scratch that product() needs.
std::size_t product_scratch(const KernelTable& kt);

// `next` is where this thread will most likely read after b: with few rows, which are bound by reading, it is fetched
// while the last lines of b are worked on, since a stream that starts cold costs as much as several lines.
template <class T>
void product(const KernelTable& kt, Index m, Index n, Index k, Operand<T> a, Operand<T> b, float* c, Index ldc,
             bool accumulate, void* scratch, const void* next = nullptr);

// Several products with the same b, which is packed once for all: part i gives m rows of c.
template <class T>
struct ProductRows {
  Operand<T> a;
  Index m;
  float* c;
  Index ldc;
};
template <class T>
void product(const KernelTable& kt, std::span<const ProductRows<T>> parts, Index n, Index k, Operand<T> b, bool accumulate,
             void* scratch);

// Widens or narrows a row between storage and f32; a copy when the storage is f32.
void to_f32(const KernelTable& kt, Index n, const float* x, float* y);
void to_f32(const KernelTable& kt, Index n, const BFloat16* x, float* y);
void from_f32(const KernelTable& kt, Index n, const float* x, float* y);
void from_f32(const KernelTable& kt, Index n, const float* x, BFloat16* y);

}  // namespace dsmoe::cpu
