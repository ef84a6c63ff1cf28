// The table of SIMD kernels, one for each instruction set, chosen once at start.
//
// A matrix product works on panels of 32-bit units. A unit is one f32, or a pair of bf16 that are neighbours
// along the summed dimension k. A panel of width w holds unit (k, i) at [k * w + i], i < w: what the inner
// loop reads, in the order in which it reads it. Each output is one chain of multiply-adds over k, whatever
// the tile it falls into, so its bits depend on its own row and column alone.
#pragma once

#include <cstdint>

#include "ops/cpu/masked.h"

namespace dsmoe::cpu {

using Index = std::int64_t;

// Pieces of memory of kRunLines cache lines each.
struct Runs {
  const void* const* begin = nullptr;
  Index count = 0;
};
inline constexpr Index kRunLines = 16;
inline constexpr int kFewRows = 4;

// Pieces of memory of `length` bytes, `stride` bytes apart, to fetch into the cache bit by bit while a kernel works:
// all at once they would hold up what the kernel reads itself.
struct Pieces {
  const char* begin = nullptr;
  Index count = 0, length = 0, stride = 0;
};

// One step of AdamW, with everything precomputed that is the same for all elements.
struct AdamStep {
  float grad_scale;    // clipping
  float beta1, beta2;  // of the moments
  float keep;          // 1 - learning rate * weight decay; 1 where there is none
  float rate;          // learning rate / (1 - beta1^t)
  float root_scale;    // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

struct QuantKernels;
struct Bf16Tiles;

struct KernelTable {
  const char* name;
  const QuantKernels* quant = nullptr;         // set in kernels.cpp: products with quantized weights
  const Bf16Tiles* bf16_tiles = nullptr;       // products of bf16 on a processor that multiplies tiles, or null
  const KernelTable* without_tiles = nullptr;  // the kernels that have no tiles but are the same otherwise; null: these
  int mr;                                      // rows of the largest tile
  int nr;                                      // columns of a tile, and the width of a column panel
  bool bf16_dot;  // has dot products of bf16 pairs; else bf16 operands are widened to f32 first

  // c[m, n] = a · b (or += with accumulate), a: row panel of width m <= mr, b: column panel of width nr.
  // Units are f32, or pairs of bf16 in the second. `ahead` are runs of memory to fetch into the cache meanwhile.
  void (*tile_f32)(Index k, const std::uint32_t* a, int m, const std::uint32_t* b, float* c, Index ldc, int n,
                   bool accumulate, Runs ahead);
  void (*tile_bf16)(Index k, const std::uint32_t* a, int m, const std::uint32_t* b, float* c, Index ldc, int n,
                    bool accumulate, Runs ahead);

  // The same sums for few rows (m <= kFewRows) straight from lines that run along k, without packing them: c[m, lines]
  // for all k, in blocks of `depth` units; lines <= few_lines. `ahead` is memory that comes next, in the order in which
  // it lies: it is fetched at the pace at which the lines are read.
  int few_lines;
  void (*few_f32)(Index k, Index depth, const std::uint32_t* a, int m, const std::uint32_t* const* line, int lines,
                  float* c, Index ldc, bool accumulate, const void* ahead);
  void (*few_bf16)(Index k, Index depth, const std::uint32_t* a, int m, const std::uint32_t* const* line, int lines,
                   float* c, Index ldc, bool accumulate, const void* ahead);

  // Panels of `width` columns from `n` lines that run along k: line i holds units (0, i), (1, i), ... Panel j
  // starts at panels + j * stride and takes columns [j * width, (j + 1) * width); columns past n become zero.
  void (*pack_lines)(const std::uint32_t* const* line, Index n, Index k, std::uint32_t* panels, int width, Index stride);
  // The same from lines across k: line p holds elements (p, 0), (p, 1), ... The bf16 form takes k elements and
  // makes (k + 1) / 2 rows of pairs.
  void (*pack_across_f32)(const float* const* line, Index n, Index k, std::uint32_t* panels, int width, Index stride);
  void (*pack_across_bf16)(const std::uint16_t* const* line, Index n, Index k, std::uint32_t* panels, int width,
                           Index stride);

  // Products of few rows a[i], i < m <= mr, with lines of memory that are `stride` elements apart, read in place and
  // once: a cache of keys or values. One chain for every output, so the bits are those of a product by kernels_of_lines().
  // dot_lines: c[i, j] = <a[i], line j> for n lines of k elements, both over 0; k is even for bf16.
  void (*dot_lines_f32)(Index k, const float* const* a, int m, const float* line, Index stride, Index n, float* c,
                        Index ldc, Pieces ahead);
  void (*dot_lines_bf16)(Index k, const std::uint16_t* const* a, int m, const std::uint16_t* line, Index stride, Index n,
                         float* c, Index ldc, Pieces ahead);
  // mix_lines: c[i] = sum over p of a[i][p] * line p, for k lines of n elements, both over 0; with go_on the chains in c go
  // on. With bf16 and odd k, a[i][k] exists and is zero.
  void (*mix_lines_f32)(Index k, const float* const* a, int m, const float* line, Index stride, Index n, float* c,
                        Index ldc, bool go_on, Pieces ahead);
  void (*mix_lines_bf16)(Index k, const std::uint16_t* const* a, int m, const std::uint16_t* line, Index stride, Index n,
                         float* c, Index ldc, bool go_on, Pieces ahead);

  void (*widen)(Index n, const std::uint16_t* x, float* y);   // bf16 -> f32
  void (*narrow)(Index n, const float* x, std::uint16_t* y);  // f32 -> bf16, to nearest even

  void (*swiglu)(Index n, const float* gate, const float* up, float* h);  // h = silu(gate) * up
  // From dh: dgate, dup, and h again. Outputs may alias inputs.
  void (*swiglu_backward)(Index n, const float* gate, const float* up, const float* dh, float* dgate, float* dup, float* h);
  void (*add_scaled)(Index n, float scale, const float* x, float* y);  // y += scale * x
  void (*scale)(Index n, float scale, const float* x, float* y);       // y = scale * x
  float (*dot)(Index n, const float* x, const float* y);               // one sum per SIMD lane, then a fixed tree
  void (*multiply)(Index n, float scale, const float* x, const float* y, float* z);        // z = scale * x * y
  void (*add_multiplied)(Index n, float scale, const float* x, const float* y, float* z);  // z += scale * x * y
  void (*softmax)(Index n, const float* x, float* y);
  // ds = scale * p * (dp - mean): from the gradient of probabilities to that of their logits, which are scaled.
  void (*softmax_backward)(Index n, float scale, float mean, const float* p, const float* dp, float* ds);
  void (*sigmoid)(Index n, const float* x, float* y);
  // m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g², w = keep w - rate m / (root_scale sqrt(v) + epsilon) with
  // g = grad_scale * gradient. The gradient becomes zero; w is rounded to `stored` as well, unless that is null.
  void (*adamw)(Index n, const AdamStep& step, float* gradient, float* m, float* v, float* w, std::uint16_t* stored);
  float (*largest)(Index n, const float* x);  // -infinity for none; may pass over NaN
  // y = e^(scale * (x - shift)); returns the sum, one per SIMD lane, then a fixed tree. NaN gives infinity.
  float (*exp_shifted)(Index n, float scale, float shift, const float* x, float* y);
  // Turns the pairs (a, b): a' = a cos - b sin, b' = b cos + a sin, with sin multiplied by `sign`.
  void (*rotate)(Index n, const float* cos, const float* sin, float sign, float* a, float* b);

  // Multiply-adds that stay in registers, to measure the peak: returns the number of floating-point operations.
  double (*peak_f32)(Index rounds, float* sink);
  double (*peak_bf16)(Index rounds, float* sink);
  float (*read)(Index n, const float* x);  // a sum, to measure how fast memory is read
};

// The best table for this processor, or the one that DSMOE_CPU_ISA names (amx, avx512bf16, avx512vnni, avx512, avxvnni,
// avx2, generic).
const KernelTable& kernels();

// Whose products have the order of sums of dot_lines and mix_lines, for who needs the same bits from both.
inline const KernelTable& kernels_of_lines(const KernelTable& kt) { return kt.without_tiles ? *kt.without_tiles : kt; }

// Tables compiled into this build that this processor can run, best first; for tests and `dsmoe info`.
int available_kernels(const KernelTable** tables, int capacity);

}  // namespace dsmoe::cpu
