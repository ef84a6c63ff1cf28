#include "formats/gguf_weights.h"

#include <algorithm>
#include <charconv>

#include "core/fail.h"
#include "core/log.h"
#include "core/printable.h"
#include "formats/gguf_names.h"
#include "formats/gguf_rows.h"
#include "formats/mapped_tensors.h"
#include "io/checkpoint.h"
#include "ops/repack.h"
#include "ops/repacked_layout.h"

namespace dsmoe {

namespace {

// Norms, biases and the router are f32 in every file, whatever the matrices are.
bool is_matrix(const GgufTensor& t) { return is_matrix(t.shape, t.traits); }

Tensor checked(const io::GgufFile& file, const GgufTensor& t) {
  Tensor tensor = file.tensor(t.name);
  // The format does not tell [n] from [1, n]; llama.cpp's converter writes the gate of shared experts as the latter.
  if (t.shape.rank() == 1 && tensor.shape() == Shape({1, t.shape[0]})) tensor = tensor.reshape(t.shape);
  if (tensor.shape() != t.shape)
    fail(ErrorCode::kFormat, "{}: tensor '{}' is {}, expected {}", file.path(), t.name, tensor.shape(), t.shape);
  const DType dtype = tensor.dtype();
  if (dtype == DType::kI32 || dtype == DType::kI64 || dtype == DType::kF64 || (!is_matrix(t) && is_quantized(dtype)))
    fail(ErrorCode::kUnsupported, "{}: tensor '{}' is {}, which is not supported for it", file.path(), t.name,
         to_string(dtype));
  return tensor;
}

// Readers of this architecture know no bias of attention's output, so a file with the other three has none.
bool may_be_missing(const GgufTensor& t) { return t.role == "attention.o.bias"; }

// "blk.N." of a layer behind the last, where the architecture has such layers, for predicting further tokens.
bool is_further_layer(const io::GgufFile& file, const std::string& name, Index layers) {
  const GgufArchitecture* const a = find_gguf_architecture(file.metadata().text("general.architecture", ""));
  if (!a || !a->further_layers || !name.starts_with("blk.")) return false;
  Index number = -1;
  std::from_chars(name.data() + 4, name.data() + name.size(), number);
  return number >= layers;
}

// kv_b that is used where it lies in the file; not what is computed with as all else is, for that can be trained.
std::optional<LatentWeights> parts_in_place(const io::GgufFile& file, const GgufTensor& t, DType compute) {
  if (!t.latent || file.contains(t.latent->whole)) return {};
  LatentWeights w = read_latent(file, *t.latent);
  if (w.keys.dtype() == compute && w.values.dtype() == compute) return {};
  return w;
}

}  // namespace

void check_gguf_names(const io::GgufFile& file, const std::vector<GgufTensor>& layout) {
  io::NameDifference difference{file.path(), {}, {}};
  std::vector<std::string> names;
  for (const GgufTensor& t : layout) {
    const std::string& name = t.latent && file.contains(t.latent->whole) ? t.latent->whole : t.name;
    names.push_back(name);
    if (!file.contains(name) && !may_be_missing(t)) difference.missing.push_back(name);
  }
  std::sort(names.begin(), names.end());
  Index layers = 0;
  for (const GgufTensor& t : layout) layers = std::max(layers, t.layer + 1);
  std::string passed;
  for (const io::GgufTensorInfo& t : file.tensors()) {
    if (std::binary_search(names.begin(), names.end(), t.name)) continue;
    if (!is_further_layer(file, t.name, layers))
      difference.extra.push_back(t.name);
    else if (passed.empty())
      passed = t.name;
  }
  if (!difference.empty()) throw Error(ErrorCode::kFormat, difference.message());
  if (!passed.empty())
    note("{}: layers that predict further tokens are not read: {} and what follows", file.path(), in_quotes(passed));
}

DType gguf_compute_dtype(const io::GgufFile& file) {
  for (const io::GgufTensorInfo& t : file.tensors())
    if (t.shape.rank() >= 2 && t.type->dtype != DType::kBF16 && !t.name.ends_with("ffn_gate_inp.weight"))
      return DType::kF32;
  return DType::kBF16;
}

Tensor gguf_parameter(const io::GgufFile& file, const GgufTensor& t, std::size_t number) {
  if (may_be_missing(t) && !file.contains(t.name)) return Tensor::zeros(DType::kF32, t.shape);
  if (t.latent) return read_latent(file, *t.latent).whole();
  const Tensor tensor = checked(file, t);
  if (t.order.changes()) return to_memory_order(tensor, t.order);
  if (t.traits.group != ParameterGroup::kRoutedExperts) return tensor;
  const auto expert = static_cast<Index>(number);
  return tensor.rows(expert, expert + 1).reshape({t.shape[1], t.shape[2]});
}

namespace {

// Parts of kv_b, and the layers that have them.
using LatentParts = std::vector<std::pair<Index, LatentWeights>>;

// Not matrices of which single rows are read, and of those that heads share only whole groups for each.
void repack(const std::vector<Parameter>& parameters, std::vector<Tensor>& tensors, LatentParts& parts) {
  Context ctx;
  const auto repack_one = [&](Tensor& t) {
    if (ops::can_repack(t)) t = ops::repacked(ctx, std::move(t));
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Parameter& p = parameters[i];
    if (is_matrix(p) && !p.in(ParameterGroup::kEmbedding) && !p.traits.dense) repack_one(tensors[i]);
  }
  for (auto& [layer, w] : parts) {
    const LatentSizes sizes = w.sizes();
    if (sizes.rank % ops::kRepackedRows == 0) repack_one(w.keys);
    if (sizes.value % ops::kRepackedRows == 0) repack_one(w.values);
  }
}

}  // namespace

ModelWeights load_gguf_weights(io::GgufFile file, const ModelConfig& config, std::optional<DType> dtype,
                               const LoadOptions& options) {
  const std::vector<Parameter> parameters = parameter_list(config);
  const std::vector<GgufTensor> layout = gguf_layout(config, parameters);
  check_gguf_names(file, layout);
  // Not for weights that are converted: they get memory of their own.
  const bool in_memory = !dtype && read_into_memory(options.storage, file.file_bytes());
  if (in_memory) file.read_into_memory(options.progress);
  const DType compute = dtype.value_or(gguf_compute_dtype(file));
  std::vector<Tensor> tensors(parameters.size()), used;
  LatentParts in_parts;
  for (const GgufTensor& t : layout) {
    if (t.is_second()) continue;
    if (auto parts = dtype ? std::nullopt : parts_in_place(file, t, compute)) {
      used.insert(used.end(), {parts->keys, parts->values});
      in_parts.emplace_back(t.layer, std::move(*parts));
      continue;
    }
    for (std::size_t i = 0; i < t.parameters.size(); ++i) {
      const Tensor tensor = gguf_parameter(file, t, i);
      const bool as_it_is = !dtype && is_matrix(t) && (is_quantized(tensor.dtype()) || tensor.dtype() == DType::kF16);
      tensors[t.parameters[i]] = as_it_is ? tensor : to_plain(tensor, is_matrix(t) ? compute : DType::kF32);
    }
    // The rows of the copy are used from now on; without this the map's would stay in memory beside them.
    if (t.order.changes()) file.advise(t.name, io::Advice::kDontNeed);
    if (t.latent && !file.contains(t.latent->whole))
      for (const std::string& name : {t.latent->keys, t.latent->values}) file.advise(name, io::Advice::kDontNeed);
  }
  if (in_memory && options.repack) repack(parameters, tensors, in_parts);
  used.insert(used.end(), tensors.begin(), tensors.end());
  auto check = check_of(file.maps(), used);
  ModelWeights weights = listed_weights(config, parameters, std::move(tensors));
  for (auto& [layer, parts] : in_parts) weights.layers[static_cast<std::size_t>(layer)].kv_b = std::move(parts);
  weights.check_files = std::move(check);
  return weights;
}

}  // namespace dsmoe
