#include "formats/gguf_types.h"

#include "core/fail.h"

namespace dsmoe {

namespace {

// The mixture gives more bits to the first and the last eighth of the layers and to every third between.
bool more_bits(Index layer, Index layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// What loses most by few bits.
bool sensitive(const GgufTensor& t) { return t.role == "attention.v.weight" || t.role.ends_with(".down.weight"); }

DType fitting(DType dtype, Index columns) {
  const auto fits = [&](DType d) { return columns % block_of(d).numbers == 0; };
  if (fits(dtype)) return dtype;
  const DType small = dtype == DType::kQ4_K ? DType::kQ5_0 : DType::kQ8_0;
  return block_of(dtype).numbers > 32 && fits(small) ? small : DType::kF16;
}

}  // namespace

const std::vector<GgufFileType>& gguf_file_types() {
  static const std::vector<GgufFileType> kTypes = {
      {"f32", DType::kF32, false, 0},    {"f16", DType::kF16, false, 1},     {"bf16", DType::kBF16, false, 32},
      {"q8_0", DType::kQ8_0, false, 7},  {"q4_0", DType::kQ4_0, false, 2},   {"q5_0", DType::kQ5_0, false, 8},
      {"q4_k", DType::kQ4_K, false, 14}, {"q4_k_m", DType::kQ4_K, true, 15}, {"q6_k", DType::kQ6_K, false, 18},
  };
  return kTypes;
}

const GgufFileType& gguf_file_type(std::string_view name) {
  std::string known;
  for (const GgufFileType& type : gguf_file_types()) {
    if (type.name == name) return type;
    known += (known.empty() ? "" : ", ") + type.name;
  }
  fail(ErrorCode::kInvalidArgument, "there is no file type \"{}\"; known are {}", name, known);
}

DType gguf_dtype(const GgufFileType& type, const ModelConfig& config, const GgufTensor& t) {
  if (!is_matrix(t.shape, t.traits)) return DType::kF32;
  if (!is_quantized(type.dtype)) return type.dtype;
  const Index columns = t.shape[t.shape.rank() - 1];
  const bool head = t.traits.group == ParameterGroup::kHead ||
                    (t.traits.group == ParameterGroup::kEmbedding && config.tie_word_embeddings);
  if (head && type.dtype != DType::kQ8_0) return fitting(DType::kQ6_K, columns);
  const bool more = type.mixture && sensitive(t) && more_bits(t.layer, config.num_hidden_layers);
  return fitting(more ? DType::kQ6_K : type.dtype, columns);
}

}  // namespace dsmoe
