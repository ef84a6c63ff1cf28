#include "train/memory.h"

namespace dsmoe::train {

namespace {

// Of one token; see BlockSaved.
Index block_bytes(const ModelConfig& c, Index layer, Index element) {
  const Index heads = c.num_attention_heads * c.head_dim(), kv = c.kv_heads() * c.head_dim();
  Index bytes = 2 * 4 * c.hidden_size;                              // x_in, x_mid
  bytes += element * 2 * (heads + kv) + 4 * c.num_attention_heads;  // q, k, v, out; lse
  bytes += element * c.hidden_size;                                 // the normed input of the MLP
  if (!c.is_moe_layer(layer)) return bytes + element * 2 * c.intermediate_size;
  const Index slots = c.shared_experts() + c.experts_per_token();
  bytes += element * 2 * slots * c.moe_intermediate_size;       // gate and up
  bytes += 4 * c.routed_experts() + 8 * c.experts_per_token();  // scores; experts and weights
  return bytes + 8 * slots + 4 * c.experts_per_token();         // the plan
}

}  // namespace

std::size_t kept_activation_bytes(const ModelConfig& c, DType dtype, Index sequences, Index length, bool recompute) {
  const auto element = static_cast<Index>(size_of(dtype));
  Index bytes = 0, most = 0;
  for (Index l = 0; l < c.num_hidden_layers; ++l) {
    const Index block = block_bytes(c, l, element);
    bytes += recompute ? 4 * c.hidden_size : block;
    most = most < block ? block : most;
  }
  return static_cast<std::size_t>((bytes + (recompute ? most : 0)) * sequences * length);
}

}  // namespace dsmoe::train
