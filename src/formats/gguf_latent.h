// kv_b of latent attention in GGUF files: two tensors, the keys' turned round; older files have it whole.
#pragma once

#include <string>

#include "io/gguf.h"
#include "model/latent_weights.h"
#include "model/spec.h"

namespace dsmoe {

struct LatentTensors {
  std::string keys, values, whole;  // names of [H, rank, nope], [H, value, rank], and of all of it
  LatentSizes sizes;

  static LatentTensors of(const MlaSpec& spec, Index layer);
  Shape keys_shape() const { return {sizes.heads, sizes.rank, sizes.nope}; }
  Shape values_shape() const { return {sizes.heads, sizes.value, sizes.rank}; }
};

// As the file has it: the parts where they lie.
LatentWeights read_latent(const io::GgufFile& file, const LatentTensors& l);

}  // namespace dsmoe
