#include "dsmoe/convert.h"

#include <memory>

#include "api/model_impl.h"
#include "core/fail.h"
#include "formats/folder_export.h"
#include "formats/gguf_config.h"
#include "formats/gguf_export.h"
#include "formats/gguf_layout.h"
#include "formats/model_source.h"
#include "io/sharded_writer.h"
#include "train/checkpoints.h"

namespace dsmoe {

namespace fs = std::filesystem;

namespace {

std::map<std::string, std::uint64_t> bytes_in_file(const ModelConfig& config, const GgufFileType& type) {
  std::map<std::string, std::uint64_t> bytes;
  for (const GgufTensor& t : gguf_layout(config, parameter_list(config))) {
    const DType dtype = gguf_dtype(type, config, t);
    bytes[to_string(dtype)] += row_bytes(dtype, t.shape.numel());
  }
  return bytes;
}

void check_free(const fs::path& out, bool file, const ConvertOptions& options) {
  if (file) {
    std::error_code ignored;
    if (fs::is_directory(out, ignored))
      fail(ErrorCode::kInvalidArgument, "{} is a folder; choose another name", out.string());
    if (!options.overwrite && fs::exists(fs::symlink_status(out, ignored)))
      fail(ErrorCode::kInvalidArgument, "{} is already there; choose another name, or overwrite it", out.string());
    return;
  }
  if (const std::vector<std::string> files = model_files(out); !options.overwrite && !files.empty())
    fail(ErrorCode::kInvalidArgument, "{} already holds a model ({}); choose another folder, or overwrite it", out.string(),
         files.front());
  if (train::is_part_of_run(out))
    fail(ErrorCode::kInvalidArgument, "{} is part of a training run; choose another folder", out.string());
}

Converted to_file(const fs::path& in, const fs::path& out, const ModelSource& model, const GgufFileType& type,
                  const ConvertOptions& options) {
  check_gguf_carries(model.config());
  io::GgufMetadata metadata = model.export_metadata(in.lexically_normal().stem().string());
  Converted result{.bytes = gguf_bytes(model.config(), type), .bytes_by_dtype = bytes_in_file(model.config(), type)};
  if (options.begin) options.begin(result.bytes);
  Context ctx(options.threads);
  write_gguf(ctx, out, model, std::move(metadata), type, options.progress);
  return result;
}

Converted to_folder(const fs::path& out, const ModelSource& model, DType dtype, Index parameters,
                    const ConvertOptions& options) {
  require(!is_quantized(dtype), "{} is a folder, which holds f32, f16 or bf16; name a file that ends with .gguf for {}",
          out.string(), options.type);
  static_cast<void>(model.tokenizer()), static_cast<void>(model.generation());  // refused before anything is made
  Converted result{.bytes = static_cast<std::uint64_t>(parameters) * size_of(dtype)};
  result.bytes_by_dtype[to_string(dtype)] = result.bytes;
  if (options.begin) options.begin(result.bytes);
  std::error_code error;
  fs::create_directories(out, error);
  if (error) fail(ErrorCode::kIo, "cannot make the folder {}: {}", out.string(), error.message());
  save_model(out, model, dtype, options.shard_bytes > 0 ? options.shard_bytes : io::kDefaultShardBytes, options.progress);
  return result;
}

}  // namespace

Converted convert(const fs::path& in, const fs::path& out, const ConvertOptions& options) {
  require(!out.empty(), "there is no name for the result; give a folder, or a name that ends with .gguf");
  check_is_model(in);
  const std::unique_ptr<const ModelSource> source = ModelSource::open(in);
  source->check_tensors();
  const DType stored = source->stored_dtype();
  const GgufFileType& type = gguf_file_type(options.type != "auto" ? options.type
                                            : is_quantized(stored) ? "f32"
                                                                   : to_string(stored));
  const bool file = out.extension() == ".gguf";
  check_free(out, file, options);
  Index parameters = 0;
  for (const Parameter& p : parameter_list(source->config())) parameters += p.shape.numel();
  Converted result =
      file ? to_file(in, out, *source, type, options) : to_folder(out, *source, type.dtype, parameters, options);
  result.parameters = parameters;
  result.type = type.name;
  return result;
}

}  // namespace dsmoe
