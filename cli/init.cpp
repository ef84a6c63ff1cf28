// dsmoe init: a randomly initialised model as a Hugging Face folder, written tensor by tensor.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "core/fail.h"
#include "io/atomic_file.h"
#include "io/sharded_writer.h"
#include "model/generation_config.h"
#include "model/weights.h"

namespace dsmoe::cli {

namespace {

struct Options {
  std::string preset, config, out, tokenizer, dtype = "bf16";
  std::uint64_t seed = 0;
  double shard_gb = static_cast<double>(io::kDefaultShardBytes) * 1e-9;
  int threads = 0;
  bool force = false;
  bool json = false;
};

void run(const Options& o) {
  if (o.preset.empty() == o.config.empty()) throw UsageError("give either --preset or --config");
  ModelConfig config = o.preset.empty() ? ModelConfig::load(o.config) : ModelConfig::preset(o.preset);
  const std::filesystem::path folder = o.out;
  if (!o.force && std::filesystem::exists(folder / "config.json"))
    fail(ErrorCode::kInvalidArgument, "{} already holds a model; choose another folder, or --force to replace it", o.out);

  std::optional<Tokenizer> tokenizer;
  if (!o.tokenizer.empty()) {
    tokenizer = Tokenizer::load(o.tokenizer);
    require(tokenizer->vocab_size() <= config.vocab_size, "the tokenizer has {} tokens, but the model's vocab_size is {}",
            tokenizer->vocab_size(), config.vocab_size);
  }
  const DType dtype = *parse_dtype(o.dtype);
  std::uint64_t bytes = 0, parameters = 0;
  for (const Parameter& p : parameter_list(config)) parameters += static_cast<std::uint64_t>(p.shape.numel());
  bytes = parameters * size_of(dtype);
  std::filesystem::create_directories(folder);
  const auto space = std::filesystem::space(folder);
  if (space.available < bytes + (bytes >> 6))
    fail(ErrorCode::kIo, "{} needs {} but has only {} free; choose another disk", o.out, human_bytes(static_cast<double>(bytes)),
         human_bytes(static_cast<double>(space.available)));

  Context ctx(o.threads);
  {
    Progress progress("init", static_cast<std::int64_t>(bytes >> 20), "MiB");
    save_model(
        folder, config, dtype,
        [&](const Parameter& p, std::size_t number) { return initial_tensor(config, p, number, o.seed, dtype, ctx); },
        static_cast<std::uint64_t>(o.shard_gb * 1e9),
        [&](std::uint64_t done, std::uint64_t) { progress.update(static_cast<std::int64_t>(done >> 20)); });
    progress.finish();
  }
  io::write_file_atomically(folder / "generation_config.json", generation_config_json(config));
  if (tokenizer) tokenizer->save(folder);

  if (o.json) {
    print_json({{"folder", o.out}, {"parameters", parameters}, {"bytes", bytes}, {"dtype", o.dtype}, {"seed", o.seed}});
  } else {
    print(fmt::format("{}: {} parameters in {}, {}, seed {}{}\n", o.out, thousands(static_cast<std::int64_t>(parameters)), o.dtype,
                      human_bytes(static_cast<double>(bytes)), o.seed,
                      tokenizer ? "" : "; without a tokenizer (give one with --tokenizer FOLDER)"));
  }
}

}  // namespace

void add_init(CLI::App& program) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = program.add_subcommand("init", "Write a randomly initialised model as a Hugging Face folder");
  command->add_option("--preset", o.preset, "A known model: " + CLI::detail::join(ModelConfig::preset_names(), ", "));
  command->add_option("--config", o.config, "A config.json, or a folder that has one");
  command->add_option("-o,--out", o.out, "The folder to write")->required();
  command->add_option("-s,--seed", o.seed, "The same seed gives the same bytes")->capture_default_str();
  command->add_option("--dtype", o.dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}))->capture_default_str();
  command->add_option("--tokenizer", o.tokenizer, "A folder with tokenizer.json to put into the model's folder");
  command->add_option("--shard-size", o.shard_gb, "GB per file at most")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("-t,--threads", o.threads, "Threads; 0: one per core")->capture_default_str();
  command->add_flag("--force", o.force, "Replace a model that is in the folder");
  command->add_flag("--json", o.json, "Print the result as JSON");
  command->footer("Example:\n  dsmoe init --preset tiny --seed 1 -o tiny-model");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
