// dsmoe convert: a model from a Hugging Face folder to a GGUF file or back, tensor by tensor.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_output.h"
#include "cli/output.h"
#include "core/fail.h"
#include "formats/folder_export.h"
#include "formats/gguf_config.h"
#include "formats/gguf_export.h"
#include "formats/model_source.h"

namespace dsmoe::cli {

namespace {

struct ConvertFlags : WriteOptions {
  std::string in, out, type = "auto";
};

std::string name_of(const std::string& path) { return std::filesystem::path(path).lexically_normal().stem().string(); }

std::uint64_t to_gguf(const ConvertFlags& o, const ModelSource& model, const GgufFileType& type) {
  check_gguf_carries(model.config());
  io::GgufMetadata metadata = model.export_metadata(name_of(o.in));
  const std::uint64_t bytes = gguf_bytes(model.config(), type);
  prepare_output(o.out, bytes, o.force);
  Context ctx(o.threads);
  with_progress("convert", bytes,
                [&](const ByteProgress& progress) { write_gguf(ctx, o.out, model, std::move(metadata), type, progress); });
  return bytes;
}

std::uint64_t to_folder(const ConvertFlags& o, const ModelSource& model, DType dtype) {
  static_cast<void>(model.tokenizer()), static_cast<void>(model.generation());  // refused before anything is made
  const std::uint64_t bytes = static_cast<std::uint64_t>(parameter_count(model.config())) * size_of(dtype);
  prepare_output(o.out, bytes, o.force);
  with_progress("convert", bytes,
                [&](const ByteProgress& progress) { save_model(o.out, model, dtype, o.shard_bytes(), progress); });
  return bytes;
}

void run(const ConvertFlags& o) {
  if (!std::filesystem::exists(o.in)) fail(ErrorCode::kIo, "there is no model {}; give a folder or a .gguf file", o.in);
  const std::unique_ptr<const ModelSource> source = ModelSource::open(o.in);
  const ModelSource& model = *source;
  model.check_tensors();
  const DType stored = model.stored_dtype();
  const GgufFileType& type = gguf_file_type(o.type != "auto" ? o.type : is_quantized(stored) ? "f32" : to_string(stored));
  const std::uint64_t bytes = is_gguf_name(o.out) ? to_gguf(o, model, type) : to_folder(o, model, type.dtype);
  const std::int64_t parameters = parameter_count(model.config());
  if (o.json) {
    print_json({{"in", o.in}, {"out", o.out}, {"parameters", parameters}, {"bytes", bytes}, {"type", type.name}});
  } else {
    print(fmt::format("{}: {} parameters in {}, {}\n", o.out, thousands(parameters), type.name,
                      human_bytes(static_cast<double>(bytes))));
  }
}

}  // namespace

void add_convert(CLI::App& program) {
  auto options = std::make_shared<ConvertFlags>();
  ConvertFlags& o = *options;
  CLI::App* command = add_command(program, "convert", "Convert a model between a Hugging Face folder and GGUF");
  command->add_option("in", o.in, "Model: a Hugging Face folder or a .gguf file")->required();
  command->add_option("-o,--out", o.out, "Output: a file name ending in .gguf, or a folder")->required();
  command->add_option("--type", o.type, "Output dtype: f32, f16 or bf16 (auto: as stored; f32 if quantized)")
      ->check(CLI::IsMember({"auto", "f32", "f16", "bf16"}))
      ->capture_default_str();
  o.add(*command);
  command->footer(
      "Examples:\n  dsmoe convert my-model -o my-model.gguf\n  dsmoe convert my-model.gguf -o my-folder\n"
      "dsmoe quantize writes quantized GGUF files.");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
