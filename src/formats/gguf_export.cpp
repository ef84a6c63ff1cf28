#include "formats/gguf_export.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "core/fail.h"
#include "core/random.h"
#include "core/threads.h"
#include "formats/generation_config.h"
#include "formats/gguf_config.h"
#include "formats/gguf_rows.h"
#include "formats/gguf_tokenizer.h"
#include "formats/model_source.h"
#include "io/gguf_writer.h"
#include "ops/mixed.h"

namespace dsmoe {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{32} << 20;  // written at a time
constexpr Index kTaskNumbers = 1 << 16;                     // converted by one task, about

struct Plan {
  std::vector<Parameter> parameters;
  std::vector<GgufTensor> layout;
  std::vector<io::TensorSpec> specs;
  std::uint64_t bytes = 0;

  Plan(const ModelConfig& config, const GgufFileType& type) : parameters(parameter_list(config)) {
    layout = gguf_layout(config, parameters);
    for (const GgufTensor& t : layout) {
      specs.push_back({t.name, gguf_dtype(type, config, t), t.shape});
      bytes += specs.back().bytes();
    }
  }
};

class Output {
 public:
  Output(const std::filesystem::path& path, const Plan& plan, io::GgufMetadata metadata, const GgufFileType& type,
         const ByteProgress& progress)
      : total_(plan.bytes), progress_(progress), writer_(path, with_type(std::move(metadata), type), plan.specs) {}

  void append(const std::string& name, std::span<const std::byte> bytes) {
    writer_.append(name, bytes);
    done_ += bytes.size();
    if (progress_) progress_(done_, total_);
  }
  void finish() { writer_.finish(); }

 private:
  static io::GgufMetadata with_type(io::GgufMetadata metadata, const GgufFileType& type) {
    metadata.set("general.file_type", io::GgufValue::u32(type.number));
    if (is_quantized(type.dtype)) metadata.set("general.quantization_version", io::GgufValue::u32(2));
    return metadata;
  }

  std::uint64_t total_, done_ = 0;
  const ByteProgress& progress_;
  io::GgufWriter writer_;
};

// Rows [0, rows) in pieces, through f32 where the storage changes; row(r) is where the row that comes r-th in the file is
// stored.
class RowConverter {
 public:
  RowConverter(Context& ctx, Output& out) : ctx_(ctx), out_(out), scratch_(static_cast<std::size_t>(ctx.pool().size())) {}

  template <class Row>
  void convert(const io::TensorSpec& spec, Index rows, Index columns, DType from, Row&& row) {
    const std::size_t bytes = row_bytes(spec.dtype, columns);
    const Index per_piece = std::max<Index>(1, static_cast<Index>(kPieceBytes / bytes));
    const Index per_task = std::max<Index>(1, kTaskNumbers / columns);
    for (Index first = 0; first < rows; first += per_piece) {
      const Index last = std::min(rows, first + per_piece);
      piece_.resize(static_cast<std::size_t>(last - first) * bytes);
      ctx_.pool().run((last - first + per_task - 1) / per_task, [&](Index task, int worker) {
        auto& numbers = scratch_[static_cast<std::size_t>(worker)];
        numbers.resize(static_cast<std::size_t>(columns));
        const Index end = std::min(last, first + (task + 1) * per_task);
        for (Index r = first + task * per_task; r < end; ++r) {
          std::byte* const to = piece_.data() + static_cast<std::size_t>(r - first) * bytes;
          if (from == spec.dtype) {
            std::memcpy(to, row(r), bytes);
            continue;
          }
          ops::to_floats(from, row(r), numbers);
          write_row(spec.dtype, numbers, to);
        }
      });
      out_.append(spec.name, piece_);
    }
  }

 private:
  Context& ctx_;
  Output& out_;
  std::vector<std::vector<float>> scratch_;  // per worker
  std::vector<std::byte> piece_;
};

void write_parameter(RowConverter& converter, Output& out, const GgufTensor& t, const io::TensorSpec& spec,
                     const Tensor& parameter) {
  const Tensor tensor = !t.latent       ? parameter
                        : t.is_second() ? latent_values(parameter, t.latent->sizes)
                                        : latent_keys(parameter, t.latent->sizes);
  if (!t.order.changes() && tensor.dtype() == spec.dtype)
    return out.append(spec.name, {static_cast<const std::byte*>(tensor.raw()), tensor.bytes()});
  // A vector is one row.
  const Tensor ordered = to_file_order(tensor, t.order);
  const Index rows = tensor.rank() == 1 ? 1 : tensor.dim(0), columns = tensor.numel() / rows;
  const auto* const data = static_cast<const char*>(ordered.raw());
  const std::size_t stride = row_bytes(tensor.dtype(), columns);
  try {
    converter.convert(spec, rows, columns, tensor.dtype(),
                      [&](Index r) { return data + static_cast<std::size_t>(r) * stride; });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(error.code(), fmt::format("tensor '{}': {}", spec.name, error.what()));
  }
}

// Blocks of one type to draw from, all of the deviation of the model's matrices.
std::vector<std::byte> block_pool(Context& ctx, DType dtype, float deviation, std::uint64_t seed, std::uint64_t blocks) {
  const StorageBlock block = block_of(dtype);
  std::vector<std::byte> pool(static_cast<std::size_t>(blocks) * block.bytes);
  const Philox rng(seed, ~static_cast<std::uint64_t>(dtype));  // parameters count up from 0
  constexpr std::uint64_t kPerTask = 256;
  ctx.pool().run(static_cast<Index>(blocks / kPerTask), [&](Index task, int) {
    std::vector<float> numbers(static_cast<std::size_t>(block.numbers));
    const auto quads = static_cast<std::uint64_t>(block.numbers / 4);
    for (std::uint64_t b = static_cast<std::uint64_t>(task) * kPerTask; b < static_cast<std::uint64_t>(task + 1) * kPerTask;
         ++b) {
      for (std::uint64_t q = 0; q < quads; ++q) {
        const std::array<float, 4> four = rng.normals(b * quads + q);
        for (std::size_t j = 0; j < 4; ++j) numbers[4 * q + j] = deviation * four[j];
      }
      write_row(dtype, numbers, pool.data() + b * block.bytes);
    }
  });
  return pool;
}

void write_from_pool(Context& ctx, Output& out, const io::TensorSpec& spec, const std::vector<std::byte>& pool,
                     const Philox& rng) {
  const std::size_t block = block_of(spec.dtype).bytes, in_pool = pool.size() / block;
  const std::uint64_t blocks = spec.bytes() / block, per_piece = kPieceBytes / block;
  std::vector<std::byte> piece;
  for (std::uint64_t first = 0; first < blocks; first += per_piece) {
    const std::uint64_t n = std::min(per_piece, blocks - first);
    piece.resize(n * block);
    constexpr std::uint64_t kPerTask = 1 << 14;
    ctx.pool().run(static_cast<Index>((n + kPerTask - 1) / kPerTask), [&](Index task, int) {
      const std::uint64_t begin = static_cast<std::uint64_t>(task) * kPerTask;
      for (std::uint64_t b = begin; b < std::min(n, begin + kPerTask); b += 4) {
        const std::array<std::uint32_t, 4> four = rng.block((first + b) / 4);  // pieces hold a multiple of 4 blocks
        for (std::uint64_t j = 0; j < std::min<std::uint64_t>(4, n - b); ++j)
          std::copy_n(pool.data() + four[j] % in_pool * block, block, piece.data() + (b + j) * block);
      }
    });
    out.append(spec.name, piece);
  }
}

}  // namespace

io::GgufMetadata gguf_export_metadata(const ModelConfig& config, const std::optional<Tokenizer>& tokenizer,
                                      const GenerationConfig& generation, const std::string& name) {
  io::GgufMetadata m = gguf_metadata(config, name);
  tokenizer ? put_tokenizer(*tokenizer, config.vocab_size, m) : put_no_tokenizer(m);
  put_generation_config(generation, m);
  put_end_tokens(generation.eos_token_id.empty() ? config.eos_token_id : generation.eos_token_id, tokenizer, m);
  return m;
}

std::uint64_t gguf_bytes(const ModelConfig& config, const GgufFileType& type) { return Plan(config, type).bytes; }

void write_gguf(Context& ctx, const std::filesystem::path& path, const ModelConfig& config, io::GgufMetadata metadata,
                const GgufFileType& type, const TensorSource& tensor, const std::function<void(const Parameter&)>& release,
                const ByteProgress& progress, const std::function<void()>& check) {
  check_gguf_carries(config);
  const Plan plan(config, type);
  Output out(path, plan, std::move(metadata), type, progress);
  RowConverter converter(ctx, out);
  for (std::size_t i = 0; i < plan.layout.size(); ++i) {
    for (const std::size_t number : plan.layout[i].parameters) {
      write_parameter(converter, out, plan.layout[i], plan.specs[i], tensor(plan.parameters[number], number));
      if (release) release(plan.parameters[number]);
    }
  }
  if (check) check();
  out.finish();
}

void write_gguf(Context& ctx, const std::filesystem::path& path, const ModelSource& source, io::GgufMetadata metadata,
                const GgufFileType& type, const ByteProgress& progress) {
  source.checked([&] {
    write_gguf(
        ctx, path, source.config(), std::move(metadata), type,
        [&](const Parameter& p, std::size_t) { return source.tensor(p); }, [&](const Parameter& p) { source.release(p); },
        progress, [&] { source.check_files(); });
  });
}

void write_random_gguf(Context& ctx, const std::filesystem::path& path, const ModelConfig& config,
                       io::GgufMetadata metadata, const GgufFileType& type, std::uint64_t seed,
                       const ByteProgress& progress) {
  constexpr std::uint64_t kPoolBlocks = 1 << 16;
  check_gguf_carries(config);
  const Plan plan(config, type);
  Output out(path, plan, std::move(metadata), type, progress);
  RowConverter converter(ctx, out);
  std::map<DType, std::vector<std::byte>> pools;
  for (std::size_t i = 0; i < plan.layout.size(); ++i) {
    const GgufTensor& t = plan.layout[i];
    const io::TensorSpec& spec = plan.specs[i];
    if (is_quantized(spec.dtype)) {
      auto& pool = pools[spec.dtype];
      if (pool.empty()) pool = block_pool(ctx, spec.dtype, static_cast<float>(config.initializer_range), seed, kPoolBlocks);
      write_from_pool(ctx, out, spec, pool, Philox(seed, t.parameters.front()));
      continue;
    }
    const DType drawn = spec.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
    for (const std::size_t number : t.parameters)
      write_parameter(converter, out, t, spec, initial_tensor(config, plan.parameters[number], number, seed, drawn, ctx));
  }
  out.finish();
}

}  // namespace dsmoe
