#include "train/memory.h"

#include <algorithm>

#include "core/device.h"
#include "core/fail.h"
#include "model/families/family.h"
#include "model/modules.h"
#include "model/transformer.h"

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

namespace {

// Rows of a layer's experts while its gradients are computed: of x or dy gathered, of h, and of dx.
Index layer_bytes(const LayerSpec& layer, Index width, Index tokens, Index element) {
  const ExpertsShape e = experts_shape(layer);
  const auto* const moe = std::get_if<MoeConfig>(&layer.feed_forward);
  const Index chosen = moe ? moe->experts_per_token : 0;
  return tokens * element * (2 * chosen * width + width + (e.whole + chosen) * e.width);
}

}  // namespace

std::size_t gpu_training_bytes(const ModelConfig& c, const TrainOptions& o) {
  const ModelSpec spec = spec_of(c);
  const auto element = static_cast<Index>(size_of(o.dtype));
  const Index tokens = o.batch_size * o.seq_len, rounded = o.dtype == DType::kF32 ? 0 : 4;
  Index state = 0;
  for (const Parameter& p : registered_parameters(spec)) {
    // With LoRA: the weights, their gradients, and a copy of what the adapters are added to.
    const Index trained = o.lora_rank == 0 ? 8 + rounded : p.traits.adapter ? element : 0;
    state += p.shape.numel() * (element + 4 + trained);
  }
  Index passing = std::min(tokens, head_tokens(Device::kCuda, spec.vocab)) * spec.vocab * (4 + (rounded > 0 ? element : 0));
  for (const LayerSpec& layer : spec.layers) passing = std::max(passing, layer_bytes(layer, spec.width, tokens, element));
  // The residual stream and its gradient; a norm's output and its gradient in f32 and rounded.
  const Index streams = tokens * spec.width * (4 + 4 + 4 + 2 * element);
  const std::size_t bytes = static_cast<std::size_t>(state + passing + streams) +
                            kept_activation_bytes(c, o.dtype, o.batch_size, o.seq_len, o.recompute);
  // Blocks of a GPU's memory are rounded up to an eighth of a power of two. With 7% for that the sum is within 2% of what
  // the three models of docs/performance.md took.
  return bytes + bytes / 100 * 7;
}

Device training_device(std::optional<Device> wanted, const ModelConfig& c, const TrainOptions& o) {
  if (wanted) return *wanted;
  const bool fits = device::available() && gpu_training_bytes(c, o) <= device::memory().free;
  return fits ? Device::kCuda : Device::kCpu;
}

void check_gpu_memory(const ModelConfig& c, const TrainOptions& o) {
  device::release_cached();
  const std::size_t needed = gpu_training_bytes(c, o), free = device::memory().free;
  require(
      needed <= free,
      "training takes about {:.1f} GB, the GPU has {:.1f} GB free; use a smaller batch-size or seq-len, recompute, dtype "
      "bf16, or a smaller model",
      static_cast<double>(needed) * 1e-9, static_cast<double>(free) * 1e-9);
}

}  // namespace dsmoe::train
