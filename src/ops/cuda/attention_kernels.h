// Launchers of attention's kernels. Pointers are device pointers; work lists are in GPU memory, and grids may be larger.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "dsmoe/dtype.h"
#include "ops/cuda/slices.h"

namespace dsmoe::cuda {

struct AttentionArgs {
  const void *q, *k, *v;  // [T, H * head_dim], [tokens, KVH * head_dim] twice
  DType stored;           // of k and v
  void* out;              // [T, H * head_dim]
  float* lse;             // [H, T] or null
  int heads, kv_heads, head_dim, rows;
  float scale;
  float to_log2;  // scale * log2(e)
  ops::cuda::AttentionWork work;
};

// What runs of tiles give for rows that are merged later.
struct AttentionPartial {
  float* out;      // [partial rows, H, head_dim]
  float2* weight;  // [partial rows, H]: the largest score and the sum
};

// bf16, head_dim 64 or 128, keys and values bf16 or q8_0. `stages`: tiles of keys and values in shared memory, 1 or 2
// (one of q8_0 beside one that is unpacked).
void attention_prompt(const AttentionArgs& args, int blocks, int stages, cudaStream_t stream);
// The same bits on Hopper over whole sequences whose keys and values are in the batch, all of them finite; with lse.
void attention_forward_hopper(const AttentionArgs& args, int blocks, cudaStream_t stream);
// Slices of up to `rows` rows, in `items` runs of tiles. Up to kDoneCounters heads.
void attention_decode(const AttentionArgs& args, int slices, int items, int rows, const AttentionPartial& partial,
                      cudaStream_t stream);
// f32 or bf16, any head_dim; keys and values f32, bf16 or q8_0.
void attention_plain(const AttentionArgs& args, int slices, const std::int32_t* position, DType dtype, cudaStream_t stream);

// The gradient over whole sequences.
struct AttentionGradArgs {
  const void *q, *k, *v, *out, *dout;  // [T, H * head_dim], [T, KVH * head_dim] twice, [T, H * head_dim] twice
  const float* lse;                    // [H, T]
  void *dq, *dk, *dv;                  // as q, k, v: f32, or on Hopper bf16
  bool rounded;                        // bf16
  const float *cos, *sin;  // [T, head_dim / 2]: q and k were turned by them, and dq and dk are of what was before;
                           // null: not. Hopper only
  int heads, kv_heads, head_dim, rows;
  float scale;
  ops::cuda::GradWork work;
};

// f32 or bf16, any head_dim. delta: room for [H, T].
void attention_backward_plain(const AttentionGradArgs& args, float* delta, DType dtype, cudaStream_t stream);

// bf16, head_dim 64 or 128, on Hopper, with memory besides: some heads are worked on at a time, whose dS of all pairs of a
// query and a key goes through memory.
struct AttentionGradMemory {
  int kv_heads;   // at a time
  float* stats;   // [stat_numbers()]
  void* ds;       // [ds_bytes()]
  int* counters;  // [2 * launches()]

  int launches(const AttentionGradArgs& a) const { return (a.kv_heads + kv_heads - 1) / kv_heads; }
  static std::size_t stat_numbers(const AttentionGradArgs& a) {
    return static_cast<std::size_t>(a.heads) * static_cast<std::size_t>(a.work.counts.blocks) * 2 * ops::cuda::kGradRows;
  }
  // Of one head of keys and values.
  static std::size_t ds_bytes(const AttentionGradArgs& a) {
    return static_cast<std::size_t>(a.heads / a.kv_heads) * static_cast<std::size_t>(a.work.counts.pairs) *
           ops::cuda::kGradRows * ops::cuda::kGradRows * 2;
  }
};
void attention_backward_hopper(const AttentionGradArgs& args, const AttentionGradMemory& memory, cudaStream_t stream);

}  // namespace dsmoe::cuda
