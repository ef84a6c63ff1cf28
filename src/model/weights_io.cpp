// Loading, initialising and saving the tensors of a model.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/available_memory.h"
#include "core/fail.h"
#include "core/random.h"
#include "core/threads.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/sharded_writer.h"
#include "model/gguf_weights.h"
#include "model/weights.h"
#include "ops/dispatch.h"

namespace dsmoe {

bool read_into_memory(Storage storage, std::uint64_t bytes) {
  constexpr std::uint64_t kMargin = std::uint64_t{1} << 30;  // for activations, and for others
  return storage == Storage::kMemory || (storage == Storage::kAuto && bytes + kMargin <= available_memory());
}

ModelWeights load_weights(const std::filesystem::path& path, const ModelConfig& config, DType dtype,
                          const LoadOptions& options) {
  if (io::GgufFile::is_gguf(path)) return load_gguf_weights(io::GgufFile::open(path), config, dtype, options);
  io::Checkpoint checkpoint = io::Checkpoint::open(path);
  const std::vector<Parameter> parameters = parameter_list(config);
  std::vector<std::string> names;
  for (const Parameter& p : parameters) names.push_back(p.name);
  if (config.tie_word_embeddings && checkpoint.contains("lm_head.weight")) names.push_back("lm_head.weight");
  const io::NameDifference difference = checkpoint.missing_and_extra(names);
  if (!difference.empty()) throw Error(ErrorCode::kFormat, difference.message());
  // Not for weights that are converted: they get memory of their own.
  const bool as_stored = checkpoint.info(parameters.front().name).dtype == io::dtype_in_file(dtype);
  if (as_stored && read_into_memory(options.storage, checkpoint.total_bytes()))
    checkpoint.read_into_memory(options.progress);

  std::vector<Tensor> tensors;
  for (const Parameter& p : parameters)
    tensors.push_back(
        checkpoint.expect(p.name, {DType::kF32, DType::kBF16, DType::kF16}, p.shape).to(stored_dtype(p.kind, dtype)));
  return listed_weights(config, parameters, std::move(tensors));
}

DType natural_dtype(const std::filesystem::path& path) {
  if (io::GgufFile::is_gguf(path)) return gguf_compute_dtype(io::GgufFile::open(path));
  const io::Checkpoint checkpoint = io::Checkpoint::open(path);
  for (const std::string& name : checkpoint.names())
    if (checkpoint.info(name).dims.size() == 2) return checkpoint.info(name).dtype == "F32" ? DType::kF32 : DType::kBF16;
  return DType::kF32;
}

Tensor initial_tensor(const ModelConfig& config, const Parameter& p, std::size_t number, std::uint64_t seed, DType dtype,
                      Context& ctx) {
  Tensor t(stored_dtype(p.kind, dtype), p.shape);
  const Philox rng(seed, number);
  const auto bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.hidden_size)));
  const auto deviation = static_cast<float>(config.initializer_range);
  // Numbers 4i to 4i + 3 of the tensor.
  const auto draw = [&](std::uint64_t i) -> std::array<float, 4> {
    if (is_norm(p.kind)) return {1, 1, 1, 1};
    if (is_bias(p.kind)) return {};
    std::array<float, 4> four = rng.normals(i);
    for (std::size_t j = 0; j < 4; ++j)
      four[j] = p.kind == ParameterKind::kRouter ? bound * (2 * rng.uniform(4 * i + j) - 1) : deviation * four[j];
    return four;
  };
  ops::dispatch(t.dtype(), [&]<class T>(T) {
    T* const to = t.data<T>();
    constexpr Index kPiece = 1 << 16;
    ctx.pool().run((t.numel() + kPiece - 1) / kPiece, [&](Index task, int) {
      const Index end = std::min(t.numel(), (task + 1) * kPiece);
      for (Index i = task * kPiece; i < end; i += 4) {
        const std::array<float, 4> four = draw(static_cast<std::uint64_t>(i / 4));
        for (Index j = 0; j < std::min<Index>(4, end - i); ++j) to[i + j] = T(four[static_cast<std::size_t>(j)]);
      }
    });
    if (p.kind == ParameterKind::kEmbedding && config.pad_token_id) {
      const Index row = *config.pad_token_id, width = p.shape[1];
      if (row < p.shape[0]) std::fill_n(to + row * width, width, T(0.0f));
    }
  });
  return t;
}

ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed, DType dtype, Context& ctx) {
  ModelWeights w = empty_weights(config, dtype);
  const std::vector<Parameter> parameters = parameter_list(config);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    w.view(parameters[i]).assign(initial_tensor(config, parameters[i], i, seed, dtype, ctx));
  return w;
}

void save_model(const std::filesystem::path& folder, const ModelConfig& config, DType dtype, const TensorSource& tensor,
                std::uint64_t max_shard_bytes, const ByteProgress& progress) {
  const std::vector<Parameter> parameters = parameter_list(config);
  std::vector<io::TensorSpec> specs;
  std::uint64_t total = 0, done = 0;
  for (const Parameter& p : parameters) {
    specs.push_back({p.name, stored_dtype(p.kind, dtype), p.shape});
    total += specs.back().bytes();
  }
  io::ShardedWriter writer(folder, specs, max_shard_bytes);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor t = tensor(parameters[i], i).to(specs[i].dtype);
    writer.write(parameters[i].name, t);
    done += t.bytes();
    if (progress) progress(done, total);
  }
  ModelConfig stored = config;
  stored.torch_dtype = dtype;
  io::write_file_atomically(folder / "config.json", stored.to_json());
  writer.finish();
}

}  // namespace dsmoe
