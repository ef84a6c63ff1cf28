#include "train/memory.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/fail.h"
#include "core/gpu_block.h"
#include "model/families/family.h"
#include "model/modules.h"
#include "model/transformer.h"

namespace dsmoe::train {

namespace {

// What a pass keeps from forward to backward, and the most that a layer's backward computes again: sums over tensors.
struct Kept {
  std::size_t always = 0, again = 0;
};

// `bytes_of`: of a tensor with so many bytes per token.
template <class BytesOf>
Kept kept_of(const ModelSpec& spec, DType dtype, Recompute recompute, BytesOf bytes_of) {
  const auto element = static_cast<Index>(size_of(dtype));
  const auto sum = [&](const KeptBytes& tensors) {
    std::size_t bytes = 0;
    for (const Index per_token : tensors) bytes += bytes_of(per_token);
    return bytes;
  };
  Kept kept;
  for (const LayerSpec& layer : spec.layers) {
    const std::size_t all = sum(kept_bytes(layer, spec.width, element));
    const std::size_t left_out = recompute == Recompute::kBlock ? all - bytes_of(4 * spec.width)
                                 : recompute == Recompute::kMoe ? sum(recomputable_bytes(layer, spec.width, element))
                                                                : 0;
    kept.always += all - left_out;
    kept.again = std::max(kept.again, left_out);
  }
  return kept;
}

// Numbers of each of the model's tensors: an expert's matrices are parts of two.
std::vector<Index> tensors_of(const ModelSpec& spec) {
  std::vector<Index> alone;
  std::map<std::pair<Index, bool>, Index> stacks;
  for (const Parameter& p : registered_parameters(spec)) {
    if (const auto* const place = std::get_if<ExpertPlace>(&p.place))
      stacks[{p.layer, place->part == ExpertPart::kDown}] += p.shape.numel();
    else
      alone.push_back(p.shape.numel());
  }
  for (const auto& [key, numbers] : stacks) alone.push_back(numbers);
  return alone;
}

std::size_t block_of_bytes(Index bytes) { return device::block_size(static_cast<std::size_t>(bytes)); }

// Weights, gradients, and what the update has besides.
std::size_t state_bytes(const ModelSpec& spec, const TrainOptions& o) {
  const auto element = static_cast<Index>(size_of(o.dtype));
  std::size_t bytes = 0;
  for (const Index n : tensors_of(spec)) bytes += block_of_bytes(n * element) + block_of_bytes(4 * n);
  if (o.lora_rank > 0) {  // a copy of what the adapters are added to
    for (const Parameter& p : registered_parameters(spec))
      if (p.traits.adapter) bytes += block_of_bytes(p.shape.numel() * element);
    return bytes;
  }
  for (const Index n : tensors_of(spec)) bytes += (o.dtype == DType::kF32 ? 2 : 3) * block_of_bytes(4 * n);
  return bytes;
}

}  // namespace

std::size_t kept_activation_bytes(const ModelConfig& c, DType dtype, Index sequences, Index length, Recompute recompute) {
  const Kept kept = kept_of(spec_of(c), dtype, recompute,
                            [&](Index bytes) { return static_cast<std::size_t>(bytes * sequences * length); });
  return kept.always + kept.again;
}

std::size_t gpu_training_bytes(const ModelConfig& c, const TrainOptions& o, const RankLayout& layout) {
  const ModelSpec spec = spec_of(c);
  const auto element = static_cast<Index>(size_of(o.dtype));
  const Index tokens = (o.batch_size + layout.ranks - 1) / layout.ranks * o.seq_len;
  const auto of_tokens = [&](Index bytes) { return block_of_bytes(bytes * tokens); };
  // Experts that are spread over ranks keep what they have.
  const bool keeps_moe = layout.expert_parallel > 1 && o.recompute == Recompute::kMoe;
  const Kept kept = kept_of(spec, o.dtype, keeps_moe ? Recompute::kNone : o.recompute, of_tokens);
  // The head: logits and, beside f32 ones, their gradient in the dtype of the activations.
  const Index logits = std::min(tokens, head_tokens(Device::kCuda, spec.vocab)) * spec.vocab;
  const std::size_t head = block_of_bytes(4 * logits) + (o.dtype == DType::kF32 ? 0 : block_of_bytes(element * logits));
  // Rows of a layer's experts while its gradients are computed: of x or dy gathered, of dx, and of h.
  std::size_t layer = 0;
  for (const LayerSpec& l : spec.layers) {
    const ExpertsShape e = experts_shape(l);
    const auto* const moe = std::get_if<MoeConfig>(&l.feed_forward);
    const Index chosen = moe ? moe->experts_per_token : 0;
    layer = std::max(layer, 2 * (chosen > 0 ? of_tokens(element * chosen * spec.width) : 0) +
                                of_tokens(element * spec.width) + of_tokens(element * (e.whole + chosen) * e.width));
  }
  // The residual stream and its gradient; a norm's output and its gradient in f32 and rounded.
  const std::size_t streams = 3 * of_tokens(4 * spec.width) + 2 * of_tokens(element * spec.width);
  const bool shared_out = layout.ranks > 1 && o.lora_rank == 0;
  const std::size_t state =
      shared_out ? static_cast<std::size_t>(rank_memory(c, o.dtype, layout).total()) : state_bytes(spec, o);
  const std::size_t summed = shared_out && layout.overlap ? block_of_bytes(4 * largest_stage(c, layout)) : std::size_t{0};
  const std::size_t bytes = state + kept.always + std::max(head, kept.again + layer) + streams + summed;
  // A freed block may be used again for a smaller tensor. With 2% for that the sum is within 4% of what the three models of
  // docs/performance.md took, whatever they computed again.
  return bytes + bytes / 50;
}

Device training_device(std::optional<Device> wanted, const ModelConfig& c, const TrainOptions& o) {
  if (wanted) return *wanted;
  const bool fits = device::available() && gpu_training_bytes(c, o) <= device::memory().free;
  return fits ? Device::kCuda : Device::kCpu;
}

std::string what_fits(const ModelConfig& c, const TrainOptions& o, std::size_t bytes, const RankLayout& layout) {
  for (TrainOptions fits = o; fits.batch_size >= layout.ranks; fits.batch_size /= 2) {
    for (const auto& [recompute, name] : OptionNames<Recompute>::values) {
      if (recompute < o.recompute) continue;
      fits.recompute = recompute;
      if (gpu_training_bytes(c, fits, layout) > bytes) continue;
      std::string text;
      if (fits.batch_size < o.batch_size) text = fmt::format("batch-size {}", fits.batch_size);
      if (fits.batch_size < o.batch_size && o.batch_size % fits.batch_size == 0)
        text += fmt::format(", grad-accum {}", o.grad_accum * (o.batch_size / fits.batch_size));
      if (recompute != o.recompute) text += fmt::format("{}recompute {}", text.empty() ? "" : ", ", name);
      return text;
    }
  }
  return {};
}

void check_gpu_memory(const ModelConfig& c, const TrainOptions& o, const RankLayout& layout) {
  device::release_cached();
  const std::size_t needed = gpu_training_bytes(c, o, layout), free = device::memory().free;
  if (needed <= free) return;
  const std::string fits = what_fits(c, o, free, layout);
  fail(ErrorCode::kInvalidArgument, "training takes about {:.1f} GB, the GPU has {:.1f} GB free; {}",
       static_cast<double>(needed) * 1e-9, static_cast<double>(free) * 1e-9,
       fits.empty() ? "use a smaller seq-len or model" + std::string(o.dtype == DType::kF32 ? ", or dtype bf16" : "")
                    : "what would fit: " + fits);
}

}  // namespace dsmoe::train
