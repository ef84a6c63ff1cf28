#include "formats/gguf_latent.h"

#include <fmt/format.h>

#include "core/fail.h"
#include "ops/mixed.h"

namespace dsmoe {

namespace {

Tensor checked_part(const io::GgufFile& file, const std::string& name, const Shape& shape) {
  const Tensor t = file.tensor(name);
  if (t.shape() != shape)
    fail(ErrorCode::kFormat, "{}: tensor '{}' is {}, expected {}", file.path(), name, t.shape(), shape);
  if (t.dtype() == DType::kI32 || t.dtype() == DType::kI64 || t.dtype() == DType::kF64)
    fail(ErrorCode::kUnsupported, "{}: tensor '{}' is {}, which is not supported for it", file.path(), name,
         to_string(t.dtype()));
  return t;
}

}  // namespace

LatentTensors LatentTensors::of(const MlaSpec& s, Index layer) {
  const auto name = [&](const char* what) { return fmt::format("blk.{}.attn_{}.weight", layer, what); };
  return {name("k_b"), name("v_b"), name("kv_b"), {s.heads, s.nope, s.value, s.kv_rank}};
}

LatentWeights read_latent(const io::GgufFile& file, const LatentTensors& l) {
  const LatentSizes& s = l.sizes;
  LatentWeights w;
  if (file.contains(l.whole)) {
    // Products take queries across its rows, through blocks.
    const Tensor whole = checked_part(file, l.whole, {s.heads * (s.nope + s.value), s.rank});
    const bool plain = whole.dtype() == DType::kF32 || whole.dtype() == DType::kBF16;
    w.weight = plain ? whole : ops::dequantized(whole, DType::kF32);
    return w;
  }
  w.keys = checked_part(file, l.keys, l.keys_shape()).reshape({s.heads * s.rank, s.nope});
  w.values = checked_part(file, l.values, l.values_shape()).reshape({s.heads * s.value, s.rank});
  return w;
}

}  // namespace dsmoe
