// Launchers of attention over latents, on Hopper: bf16, one head of keys of kLatentKeys numbers, the first kLatentValues of
// which are the values; the other numbers of `out` become zeros. The same bits from all three. `keys`: rows of the cache.
#pragma once

#include "ops/cuda/attention_kernels.h"

namespace dsmoe::cuda {

inline constexpr int kLatentKeys = 576, kLatentValues = 512;

// As attention_decode(), with partial results of kLatentValues numbers.
void latent_decode(const AttentionArgs& args, Index keys, int items, int rows, const AttentionPartial& partial,
                   cudaStream_t stream);
// Blocks of a prompt with wgmma, or with mma.
void latent_prompt(const AttentionArgs& args, Index keys, int blocks, cudaStream_t stream);
void latent_prompt_mma(const AttentionArgs& args, Index keys, int blocks, cudaStream_t stream);

}  // namespace dsmoe::cuda
