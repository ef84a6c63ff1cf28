// kv_b, the second projection of latent attention: per head rows for keys, then rows for values, [H * (nope + value),
// rank]. GGUF files have it as two tensors, the keys' turned round, so that it takes queries to the latent; older files
// have it whole.
#pragma once

#include <string>

#include "io/gguf.h"
#include "model/spec.h"

namespace dsmoe {

struct LatentTensors {
  std::string keys, values, whole;  // names of [H, rank, nope], [H, value, rank], and of all of it
  Index heads = 0, nope = 0, value = 0, rank = 0;

  static LatentTensors of(const MlaSpec& spec, Index layer);
  Shape keys_shape() const { return {heads, rank, nope}; }
  Shape values_shape() const { return {heads, value, rank}; }
};

// One of the two, as rows of the file: [H * rank, nope] or [H * value, rank]. Quantized numbers become f32.
Tensor latent_keys(const Tensor& kv_b, const LatentTensors& l);
Tensor latent_values(const Tensor& kv_b, const LatentTensors& l);
// What a file has, whichever way: f32 or bf16.
Tensor read_latent(const io::GgufFile& file, const LatentTensors& l);

}  // namespace dsmoe
