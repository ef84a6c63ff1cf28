// Every choice that the GPU layer makes from sizes and the device: which kernels run, how rows are cut into tiles, how many
// tokens a block takes. Plain functions without CUDA headers. None of them changes a result: all of them were measured, and
// the reason is beside each in heuristics.cpp. DSMOE_LOG=launch prints what was chosen.
#pragma once

#include "dsmoe/dtype.h"
#include "dsmoe/tensor.h"
#include "ops/cuda/device.h"

namespace dsmoe::cuda {

// The kernels for activations of `dtype`, model width D and expert width F. Throws when a forced path cannot run.
Path choose_path(DType dtype, Index model_width, Index expert_width);

// The same for y = x · Wᵀ with rows of K numbers, N columns of y, and y in f32 or the dtype of x.
Path choose_linear_path(DType dtype, Index inner, Index columns, DType output);

// Rows of one token tile of the Hopper kernels, at most.
inline constexpr int kWideTile = 256, kMiddleTile = 128, kNarrowTile = 64, kTinyTile = 16;
int token_tile(Index tokens, bool training);
int dense_tile(Index tokens);  // of a dense layer, or of shared experts: each has all tokens

// The tiles of y = x · Wᵀ for more than kTinyTile rows of x and so many columns of y (rows of W): 64 x 64, 128 x 64, 128 x
// 128 or 256 x 128.
enum class LinearTile { kSmall, kSlim, kSquare, kWide };
LinearTile linear_tile(Index rows, Index columns);

// Whether packed matrices are unpacked in the products (up to 16 rows at a time), or before them for the bf16 kernels.
bool unpacks_in_product(Index tokens, bool grouped);

// Whether x is gathered into rows by a pass of its own before the gate/up product, or in that product's loads.
bool gathers_first(int token_tile);

// In how many parts of D the [rows, D] outputs of a product are made and summed up.
int column_parts(Index rows, Index model_width, DType dtype, bool training);

// Tokens that one block of the gate scores.
int gate_chunk(const DeviceInfo& device, Index tokens, Index model_width, Index experts, DType dtype);

// The gate and the plan in one launch (inference on Hopper), which needs `shared_bytes` of shared memory.
bool routes_in_one_launch(Index tokens, Index experts, Index shared_bytes);
inline constexpr int kFewTokens = 64, kFewExperts = 512;

// Tokens in one slice of the gate's weight gradient, whose partial sums are added up in order.
int gate_slice(Index tokens);
inline int gate_slices(Index tokens) { return static_cast<int>((tokens + gate_slice(tokens) - 1) / gate_slice(tokens)); }

// Tokens in one slice of the gradient of a matrix [columns, inner], whose partial sums are added up in order.
int linear_slice(Index tokens, Index columns, Index inner);

// Tokens in one part of a shared expert's gradient [columns, inner] beside that of routed experts with `routed_rows` in
// all.
int shared_slice(Index tokens, Index shared, Index routed_rows, Index columns, Index inner);

// Whether combine() looks up a token's rows before the rows themselves are there.
bool combines_early(const DeviceInfo& device, Index blocks);

// Attention: on tensor cores, or the plain kernel (f32, other head sizes, older devices); and how many tiles of keys and
// values the prompt kernel has in shared memory.
struct AttentionKernels {
  bool mma = false;
  int stages = 0;
};
AttentionKernels attention_kernels(const DeviceInfo& device, DType dtype, Index head_dim, Path wanted);
inline constexpr int kPromptRows = 128;  // queries of one block of the prompt kernel
inline constexpr int kDecodeRows = 16;   // slices of up to so many rows are split over their keys instead
Index decode_run(Index slices);          // how many tiles of keys of such slices a block takes

// Attention's backward: whether Hopper's kernels do it; how many heads of keys and values they take at a time, given the
// memory that one needs; and of those, how many heads of queries go through the device side by side.
bool attention_backward_on_hopper(const DeviceInfo& device, DType dtype, Index head_dim, Path wanted);
int grad_heads(std::size_t bytes, Index kv_heads);
int grad_band(Index rows, Index head_dim);

// Blocks that choose the token of one row, in a cluster.
int sample_blocks(const DeviceInfo& device, Index rows, Path wanted);
inline constexpr int kMostSampleBlocks = 8;

}  // namespace dsmoe::cuda
