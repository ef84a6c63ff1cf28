// Which parameters each tensor of a GGUF file holds. Three things differ from a checkpoint: a layer's routed experts are
// stacked into one tensor per projection, the rows of the query and key projections may be in another order, and kv_b of
// latent attention is two tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dsmoe/model_config.h"
#include "formats/gguf_latent.h"
#include "model/parameters.h"
#include "model/row_order.h"

namespace dsmoe {

struct GgufTensor {
  std::string name;
  std::string_view role;  // and traits: of the parameters that it holds
  Shape shape;
  ParameterTraits traits;
  Index layer;
  std::vector<std::size_t> parameters;       // their numbers in the list, in the order of their rows
  RowOrder order = {};                       // of rows in the file
  std::optional<LatentTensors> latent = {};  // of kv_b, which is in two of the list

  // The second tensor of a parameter, which is read with the first.
  bool is_second() const { return latent && name == latent->values; }
};

// In the order in which we write them, which is that in which a token needs them.
std::vector<GgufTensor> gguf_layout(const ModelConfig& config, const std::vector<Parameter>& parameters);

// Rotations turn pairs of rows of a head. A checkpoint has the first of all pairs, then the second ones; GGUF has the
// two of a pair beside each other. Row r of the file is row gguf_row(r, head_dim) of the checkpoint.
inline Index gguf_row(Index r, Index head_dim) {
  const Index in_head = r % head_dim;
  return r - in_head + in_head / 2 + in_head % 2 * (head_dim / 2);
}

}  // namespace dsmoe
