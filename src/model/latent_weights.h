// kv_b, the second projection of latent attention: per head rows for keys, then rows for values, [H * (nope + value),
// rank].
#pragma once

#include "dsmoe/tensor.h"

namespace dsmoe {

struct LatentSizes {
  Index heads = 0, nope = 0, value = 0, rank = 0;
};

// Whole, which is what checkpoints have and training takes, or (`weight` is empty then) in parts of any dtype, as GGUF
// files have it. Either part takes what it multiplies along its rows, so blocks of quantized ones are used as they are.
struct LatentWeights {
  Tensor weight;
  Tensor keys;    // [H * rank, nope]: of each head the rows for keys, turned round, so that it takes queries to the latent
  Tensor values;  // [H * value, rank]

  bool in_parts() const { return keys.numel() > 0; }
  LatentSizes sizes() const;  // of parts
  Tensor whole() const;       // parts become bf16 if both are, else f32
};

// The parts of what is whole; numbers that are neither f32 nor bf16 become f32.
Tensor latent_keys(const Tensor& kv_b, const LatentSizes& sizes);
Tensor latent_values(const Tensor& kv_b, const LatentSizes& sizes);

}  // namespace dsmoe
