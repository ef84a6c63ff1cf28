// dsmoe convert: a model from a Hugging Face folder to a GGUF file or back, tensor by tensor.
#include "dsmoe/convert.h"

#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_output.h"
#include "cli/output.h"

namespace dsmoe::cli {

namespace {

struct ConvertFlags : WriteOptions {
  std::string in, out, type = "auto";
};

void run(const ConvertFlags& o) {
  const Converted done = write_converted("convert", o.in, o.out, o.force,
                                         {.type = o.type, .threads = o.threads, .shard_bytes = o.shard_bytes()});
  if (o.json) {
    print_json({{"in", o.in}, {"out", o.out}, {"parameters", done.parameters}, {"bytes", done.bytes}, {"type", done.type}});
  } else {
    print(fmt::format("{}: {} parameters in {}, {}\n", o.out, thousands(done.parameters), done.type,
                      human_bytes(static_cast<double>(done.bytes))));
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
