// dsmoe quantize: a model with smaller numbers, as a GGUF file, tensor by tensor.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_output.h"
#include "cli/output.h"
#include "cli/output_files.h"
#include "core/fail.h"
#include "formats/gguf_config.h"
#include "formats/gguf_export.h"
#include "formats/model_source.h"

namespace dsmoe::cli {

namespace {

struct QuantizeFlags {
  std::string in, out, type;
  int threads = 0;
  bool force = false, json = false;
};

// How many bytes are stored as what: a mixture, and rows that the type's blocks do not fit, make several.
std::map<std::string, std::uint64_t> bytes_by_dtype(const ModelConfig& config, const GgufFileType& type) {
  std::map<std::string, std::uint64_t> bytes;
  for (const GgufTensor& t : gguf_layout(config, parameter_list(config))) {
    const DType dtype = gguf_dtype(type, config, t);
    bytes[to_string(dtype)] += row_bytes(dtype, t.shape.numel());
  }
  return bytes;
}

void run(const QuantizeFlags& o) {
  if (!std::filesystem::exists(o.in)) fail(ErrorCode::kIo, "there is no model {}; give a folder or a .gguf file", o.in);
  if (!is_gguf_name(o.out)) throw UsageError("-o takes a name that ends with .gguf");
  const GgufFileType& type = gguf_file_type(o.type);
  const std::unique_ptr<const ModelSource> source = ModelSource::open(o.in);
  const ModelSource& model = *source;
  model.check_tensors();
  check_gguf_carries(model.config());
  io::GgufMetadata metadata = model.export_metadata(std::filesystem::path(o.in).lexically_normal().stem().string());
  const std::uint64_t bytes = gguf_bytes(model.config(), type);
  prepare_output(o.out, bytes, o.force);
  Context ctx(o.threads);
  with_progress("quantize", bytes,
                [&](const ByteProgress& progress) { write_gguf(ctx, o.out, model, std::move(metadata), type, progress); });

  const std::int64_t parameters = parameter_count(model.config());
  const double bits = 8 * static_cast<double>(bytes) / static_cast<double>(parameters);
  const std::map<std::string, std::uint64_t> parts = bytes_by_dtype(model.config(), type);
  if (o.json) {
    print_json({{"in", o.in},
                {"out", o.out},
                {"parameters", parameters},
                {"bytes", bytes},
                {"bits_per_parameter", bits},
                {"type", type.name},
                {"bytes_by_dtype", parts}});
    return;
  }
  std::string list;
  for (const auto& [name, n] : parts)
    list += fmt::format("{}{} {:.1f}%", list.empty() ? "" : ", ", name,
                        100 * static_cast<double>(n) / static_cast<double>(bytes));
  print(fmt::format("{}: {} parameters in {}, {}, {:.2f} bits each ({})\n", o.out, thousands(parameters), type.name,
                    human_bytes(static_cast<double>(bytes)), bits, list));
}

}  // namespace

void add_quantize(CLI::App& program) {
  auto options = std::make_shared<QuantizeFlags>();
  QuantizeFlags& o = *options;
  CLI::App* command = add_command(program, "quantize", "Quantize a model to GGUF");
  command->add_option("in", o.in, "Model: a Hugging Face folder or a .gguf file")->required();
  command->add_option("-o,--out", o.out, "Output .gguf file")->required();
  command->add_option("--type", o.type, "Quantization, from largest to smallest: q8_0, q6_k, q5_0, q4_k_m, q4_k or q4_0")
      ->check(CLI::IsMember({"q8_0", "q6_k", "q5_0", "q4_k_m", "q4_k", "q4_0"}))
      ->required();
  command->add_option("-t,--threads", o.threads, "CPU threads (0: one per core)")->capture_default_str();
  add_force(*command, o.force, "Replace a file that is already there");
  command->add_flag("--json", o.json, "Print the result as JSON");
  command->footer(
      "Norms and routers stay f32. q4_k_m keeps some tensors at more bits. Rows that are not a multiple of the\n"
      "block size fall back to a similar type: q5_0 for q4_k, q8_0 for q6_k.\n"
      "Examples:\n  dsmoe quantize my-model -o my-model-q4_k_m.gguf --type q4_k_m\n"
      "  dsmoe quantize my-model.gguf -o my-model-q8_0.gguf --type q8_0");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
