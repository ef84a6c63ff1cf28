// dsmoe init: a randomly initialised model as a Hugging Face folder or a GGUF file, written tensor by tensor.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_output.h"
#include "cli/option_flags.h"
#include "cli/output.h"
#include "core/fail.h"
#include "formats/folder_export.h"
#include "formats/gguf_export.h"
#include "io/gguf_metadata.h"
#include "model/weights.h"

namespace dsmoe::cli {

namespace {

struct InitFlags : WriteOptions {
  std::string preset, config, out, tokenizer, type = "bf16";
  std::vector<std::string> set;
  std::uint64_t seed = 0;
};

std::uint64_t write_folder(const InitFlags& o, const ModelConfig& config, const std::optional<Tokenizer>& tokenizer) {
  const std::optional<DType> dtype = option_value<DType>(o.type);
  if (o.type != "f32" && o.type != "bf16")
    throw UsageError(fmt::format("a folder holds f32 or bf16; for {} write a file whose name ends with .gguf", o.type));
  const std::uint64_t bytes = static_cast<std::uint64_t>(parameter_count(config)) * size_of(*dtype);
  prepare_output(o.out, bytes, o.force);
  Context ctx(o.threads);
  with_progress("init", bytes, [&](const ByteProgress& progress) {
    save_model(
        o.out, config, *dtype,
        [&](const Parameter& p, std::size_t number) { return initial_tensor(config, p, number, o.seed, *dtype, ctx); },
        o.shard_bytes(), progress, {.tokenizer = tokenizer});
  });
  return bytes;
}

std::uint64_t write_file(const InitFlags& o, const ModelConfig& config, const std::optional<Tokenizer>& tokenizer) {
  const GgufFileType& type = gguf_file_type(o.type);
  io::GgufMetadata metadata = gguf_export_metadata(config, tokenizer, {}, std::filesystem::path(o.out).stem().string());
  const std::uint64_t bytes = gguf_bytes(config, type);
  prepare_output(o.out, bytes, o.force);
  Context ctx(o.threads);
  with_progress("init", bytes, [&](const ByteProgress& progress) {
    write_random_gguf(ctx, o.out, config, std::move(metadata), type, o.seed, progress);
  });
  return bytes;
}

void run(const InitFlags& o) {
  if (o.preset.empty() == o.config.empty()) throw UsageError("give either --preset or --config");
  ModelConfig config = (o.preset.empty() ? ModelConfig::load(o.config) : ModelConfig::preset(o.preset)).with(o.set);
  std::optional<Tokenizer> tokenizer;
  if (!o.tokenizer.empty()) {
    tokenizer = Tokenizer::load(o.tokenizer);
    require(tokenizer->vocab_size() <= config.vocab_size, "the tokenizer has {} tokens, but the model's vocab_size is {}",
            tokenizer->vocab_size(), config.vocab_size);
    // Other programs end a text at the config's token, of which DeepSeek's own is the default.
    if (const auto id = tokenizer->bos_id()) config.bos_token_id = *id;
    if (const auto id = tokenizer->eos_id())
      if (std::find(config.eos_token_id.begin(), config.eos_token_id.end(), *id) == config.eos_token_id.end())
        config.eos_token_id = {*id};
  }
  const bool gguf = is_gguf_name(o.out);
  const std::uint64_t bytes = gguf ? write_file(o, config, tokenizer) : write_folder(o, config, tokenizer);
  const std::int64_t parameters = parameter_count(config);
  if (o.json) {
    print_json({{gguf ? "file" : "folder", o.out},
                {"parameters", parameters},
                {"bytes", bytes},
                {"dtype", o.type},
                {"seed", o.seed}});
  } else {
    print(fmt::format("{}: {} parameters in {}, {}, seed {}{}\n", o.out, thousands(parameters), o.type,
                      human_bytes(static_cast<double>(bytes)), o.seed,
                      tokenizer ? "" : "; no tokenizer (add one with --tokenizer FOLDER)"));
  }
}

}  // namespace

void add_init(CLI::App& program) {
  auto options = std::make_shared<InitFlags>();
  InitFlags& o = *options;
  CLI::App* command = add_command(program, "init", "Create a model with random weights");
  command->add_option("--preset", o.preset, "Known architecture: " + CLI::detail::join(ModelConfig::preset_names(), ", "));
  command->add_option("--config", o.config, "config.json, or a folder that has one");
  command
      ->add_option("--set", o.set,
                   "Change a field of the preset or config.json, as FIELD=VALUE: num_hidden_layers=8 (may be repeated)")
      ->allow_extra_args(false);
  command->add_option("-o,--out", o.out, "Output folder, or a file name ending in .gguf")->required();
  add_flag(*command, OptionInfo{"seed", "Seed; the same seed gives the same bytes"}, o.seed);
  command
      ->add_option("--type,--dtype", o.type,
                   "Dtype: f32 or bf16; for .gguf also f16, q8_0, q6_k, q5_0, q4_k_m, q4_k or q4_0")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "q8_0", "q6_k", "q5_0", "q4_k_m", "q4_k", "q4_0"}))
      ->capture_default_str();
  command->add_option("--tokenizer", o.tokenizer, "Folder with the tokenizer to include");
  o.add(*command);
  command->footer(
      "Examples:\n  dsmoe init --preset tiny --seed 1 -o tiny-model\n"
      "  dsmoe init --preset deepseek-moe-16b --set num_hidden_layers=8 --type q4_0 -o big.gguf");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
