#include "train/memory.h"

#include <algorithm>

#include "model/families/family.h"
#include "model/modules.h"

namespace dsmoe::train {

std::size_t kept_activation_bytes(const ModelConfig& c, DType dtype, Index sequences, Index length, bool recompute) {
  const ModelSpec spec = spec_of(c);
  Index bytes = 0, most = 0;
  for (const LayerSpec& layer : spec.layers) {
    const Index block = kept_bytes(layer, spec.width, static_cast<Index>(size_of(dtype)));
    bytes += recompute ? 4 * spec.width : block;
    most = std::max(most, block);
  }
  return static_cast<std::size_t>((bytes + (recompute ? most : 0)) * sequences * length);
}

}  // namespace dsmoe::train
