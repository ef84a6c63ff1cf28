// One thread's product of f32 rows with a weight matrix in whatever dtype a file has: c[m, n] = rows · wᵀ. For a quantized
// matrix the rows are rounded to 8 bits beforehand (see quant_kernels.h); the weights stay in the file's blocks and are
// unpacked where they are used, in a near cache. f16 and bf16 weights are widened, as many as fit a panel at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"
#include "ops/cpu/quant_kernels.h"

namespace dsmoe::cpu {

// Rows of k numbers, `stride` apart, as they are, and rounded to 8 bits: for products of few rows at a time, of many, or
// both. Rows of bf16 are there rounded alone, for matrices in blocks.
struct RoundedFor {
  bool few = false, many = false;

  void add(DType weights, Index rows);  // so many rows in one product
};
class MixedRows {
 public:
  MixedRows(Context& ctx, const float* x, Index rows, Index k, Index stride, RoundedFor use);
  MixedRows(Context& ctx, const float* x, Index rows, Index k, RoundedFor use) : MixedRows(ctx, x, rows, k, k, use) {}
  MixedRows(Context& ctx, const BFloat16* x, Index rows, Index k, Index stride, RoundedFor use);

  Index k() const { return k_; }
  const float* floats(Index row) const { return x_ + row * stride_; }
  const ActivationChunk* chunks(Index row) const {
    return static_cast<const ActivationChunk*>(few_.raw()) + row * activation_chunks(k_);
  }
  const ActivationBlock* blocks(Index row) const {
    return static_cast<const ActivationBlock*>(many_.raw()) + row * activation_stride(k_);
  }

 private:
  template <class Row>
  void round(Context& ctx, Index rows, RoundedFor use, Row row);

  const float* x_ = nullptr;
  Index k_, stride_;
  Tensor few_, many_;
};

// A matrix [N, K] in the bytes of a file, or repacked: then rows are taken by 32.
struct MixedMatrix {
  const char* data;
  DType dtype;
  Index row_bytes;

  const char* row(Index i) const { return data + i * row_bytes; }
};
// Whether `rows` rows at a time go straight through as many columns of it as there are, without panels; of how many rows
// that may be.
bool streams(DType dtype, Index rows);
Index most_streamed_rows();

// One worker's memory for products over k, and `extra` floats of the caller's.
class MixedProduct {
 public:
  MixedProduct(Context& ctx, int worker, Index k, Index extra);

  // c[m, n] = rows row[0 ... m) (or first_row + i where `row` is null) times the weight rows [col, col + n), m <=
  // kMixedRows. `next` (may be null) is what will be read afterwards.
  void run(const MixedRows& rows, const std::int32_t* row, Index first_row, Index m, const MixedMatrix& w, Index col,
           Index n, float* c, Index ldc, const char* next);

  float* extra() const { return extra_; }

 private:
  void many(const ActivationBlock* const* rows, Index m, Index blocks, const MixedMatrix& w, Index col, Index n, float* c,
            Index ldc, const char* next);
  void repacked_tiles(const ActivationBlock* const* rows, Index m, Index blocks, const MixedMatrix& w, Index col, Index n,
                      float* c, Index ldc, const char* next);
  const char* arranged(const ActivationBlock* const* rows, Index m, Index blocks);
  void widened(const float* const* rows, Index m, Index k, const MixedMatrix& w, Index col, Index n, float* c, Index ldc);

  const KernelTable& kt_;
  float* extra_;
  char* memory_;
  char* arranged_;  // the rows below in the order of tiles: those of a task are arranged once for all of its columns
  Index arranged_count_ = 0;
  const ActivationBlock* arranged_row_[kMixedRows];
};

// Columns that are computed together: those of a panel, and of a repacked group.
Index wide_panel();
// How the columns of a section are cut into tasks. A thread reads weights fastest in one long stream, and has to fetch the
// rows anew for every task; so in each round every thread gets an equal task of half of all that is left. The last tasks
// are short, so that no thread waits long for another's: shorter with few rows, whose work is the reading of weights.
class StreamCuts {
 public:
  StreamCuts(Context& ctx, Index columns, bool few_rows);  // of all matrices
  Index take(Index here);  // columns of the next task, at most the `here` that are left of a matrix

  // Where the tasks of n columns begin, and n at the end.
  static std::vector<Index> of(Context& ctx, Index n, bool few_rows);

 private:
  Index left_, least_, most_;
  int threads_, round_ = 0;  // tasks left of the round
  Index size_ = 0;
};

}  // namespace dsmoe::cpu
