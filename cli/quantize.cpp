// dsmoe quantize: a model with smaller numbers, as a GGUF file, tensor by tensor.
#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_output.h"
#include "cli/output.h"
#include "cli/output_files.h"
#include "dsmoe/convert.h"

namespace dsmoe::cli {

namespace {

struct QuantizeFlags {
  std::string in, out, type;
  int threads = 0;
  bool force = false, json = false;
};

void run(const QuantizeFlags& o) {
  if (!is_gguf_name(o.out)) throw UsageError("-o takes a name that ends with .gguf");
  const Converted done = write_converted("quantize", o.in, o.out, o.force, {.type = o.type, .threads = o.threads});
  const double bits = 8 * static_cast<double>(done.bytes) / static_cast<double>(done.parameters);
  if (o.json) {
    print_json({{"in", o.in},
                {"out", o.out},
                {"parameters", done.parameters},
                {"bytes", done.bytes},
                {"bits_per_parameter", bits},
                {"type", done.type},
                {"bytes_by_dtype", done.bytes_by_dtype}});
    return;
  }
  std::string list;
  for (const auto& [name, n] : done.bytes_by_dtype)
    list += fmt::format("{}{} {:.1f}%", list.empty() ? "" : ", ", name,
                        100 * static_cast<double>(n) / static_cast<double>(done.bytes));
  print(fmt::format("{}: {} parameters in {}, {}, {:.2f} bits each ({})\n", o.out, thousands(done.parameters), done.type,
                    human_bytes(static_cast<double>(done.bytes)), bits, list));
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
  command
      ->add_option("-t,--threads", o.threads,
                   "CPU threads (0: one per physical core; of a hybrid processor, the fast ones)")
      ->capture_default_str();
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
