// dsmoe compare: trains the paper's architectures at equal parameters and computation, and says what the difference is
// worth.
#include "study/compare.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/build_info.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "cli/option_flags.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/ranges.h"
#include "cli/table.h"
#include "core/fail.h"
#include "dsmoe/trainer.h"
#include "io/atomic_file.h"
#include "study/report.h"
#include "train/corpus/builtin_tokenizer.h"
#include "train/memory.h"

namespace dsmoe::cli {

namespace {

constexpr const char *kReport = "report.html", *kCurves = "curves.svg", *kAblations = "ablations.svg",
                     *kResults = "compare.json";

struct CompareFlags {
  study::CompareOptions compare;
  std::string preset, config, out, tokenizer;
  train::RunSetup where;  // its device and threads
  bool json = false;
};

void print_equal(const std::vector<study::Contender>& all) {
  Table table(
      {"", "routed", "active", "shared", "width", "expert parameters", "per token", "all parameters", "FLOPs per token"});
  for (const study::Contender& c : all)
    table.row({c.label, std::to_string(c.architecture.routed), std::to_string(c.architecture.active),
               std::to_string(c.architecture.shared),
               std::to_string(c.architecture.routed > 0 ? c.architecture.width : c.config.intermediate_size),
               thousands(c.expert_parameters), thousands(c.active_expert_parameters), thousands(c.parameters),
               human_flops(static_cast<double>(c.flops))});
  print(table.str() + "\n");
}

void print_result(const study::Comparison& found) {
  std::vector<std::string> head = {"held-out loss", "mean", "±"};
  for (Index s = 0; s < found.options.seeds; ++s)
    head.push_back(fmt::format("seed {}", found.options.train.seed + static_cast<std::uint64_t>(s)));
  Table table(head);
  for (std::size_t i = 0; i < found.contenders.size(); ++i) {
    const study::Statistic s = study::Statistic::of(found.losses(i));
    std::vector<std::string> row = {found.contenders[i].label, fmt::format("{:.4f}", s.mean),
                                    found.options.seeds > 1 ? fmt::format("{:.4f}", s.sd) : "?"};
    for (const double loss : found.losses(i)) row.push_back(fmt::format("{:.4f}", loss));
    table.row(std::move(row));
  }
  print(table.str() + "\n");
  for (const study::Verdict& v : found.verdicts()) print(v.text + "\n");
}

Tokenizer tokenizer_for(const CompareFlags& o) {
  if (!o.tokenizer.empty()) return Tokenizer::load(o.tokenizer);
  if (o.compare.train.data != std::vector<std::string>{train::kBuiltin})
    throw UsageError("--data other than builtin needs --tokenizer: a folder with tokenizer.json or tiktoken's ranks");
  return train::builtin_tokenizer(static_cast<std::int32_t>(o.compare.base.vocab_size));
}

// Only a comparison's own files are replaced, when it is run again.
void check_folder(const std::filesystem::path& out) {
  if (std::filesystem::exists(out / "settings.json")) return;
  for (const char* name : {"runs", kReport, kCurves, kAblations, kResults})
    if (std::filesystem::exists(std::filesystem::symlink_status(out / name)))
      fail(ErrorCode::kInvalidArgument, "{} is already there, but {} holds no comparison; choose another folder",
           (out / name).string(), out.string());
}

void run(CompareFlags o, const std::string& command) {
  if (!o.preset.empty() && !o.config.empty()) throw UsageError("give either --preset or --config");
  check_folder(o.out);
  o.compare.base =
      o.config.empty() ? ModelConfig::preset(o.preset.empty() ? "tiny" : o.preset) : ModelConfig::load(o.config);
  train::TrainOptions& t = o.compare.train;
  if (t.eval_every == 0) t.eval_every = std::max<Index>(1, t.steps / 7);
  t.save_every = 0;
  const Tokenizer tokenizer = tokenizer_for(o);
  if (const auto id = tokenizer.bos_id()) o.compare.base.bos_token_id = *id;
  if (const auto id = tokenizer.eos_id()) o.compare.base.eos_token_id = {*id};
  if (!o.json) print_equal(study::contenders(o.compare.base, o.compare.split, t.seq_len, o.compare.also));
  flush_output();

  Context ctx(o.where.threads, backend_for(train::training_device(o.where.device, o.compare.base, t)));
  const Interrupt interrupt(Work::kUnattended);
  const std::int64_t runs = static_cast<std::int64_t>(4 + o.compare.also.size()) * o.compare.seeds;
  std::optional<Progress> progress;
  study::CompareHooks hooks;
  hooks.stop = [&] { return interrupt.pending(); };
  hooks.note = [&](std::string_view line) { progress ? progress->line(line) : print_note(line); };
  hooks.progress = [&](Index number, const study::Contender& c, std::uint64_t seed, Index step, double loss) {
    if (!progress) progress.emplace("compare", runs * t.steps, "steps", number * t.steps + step - 1);
    progress->update(number * t.steps + step, fmt::format("{}, seed {}, loss {:.3f}", c.label, seed, loss));
  };
  const std::optional<study::Comparison> found = study::compare(ctx, o.compare, tokenizer, o.out, hooks);
  if (progress) progress->finish();
  if (!found) {
    if (o.json) return print_json({{"stopped", true}, {"signal", interrupt.signal_name()}});
    print(fmt::format("Stopped by {}. Run the same command again to resume.\n", interrupt.signal_name()));
    return;
  }
  const std::filesystem::path out = o.out;
  const nlohmann::ordered_json json =
      study::comparison_json(*found, {{"name", o.config.empty() ? (o.preset.empty() ? "tiny" : o.preset) : o.config},
                                      {"version", kVersion},
                                      {"command", command}});
  io::write_file_atomically(out / kReport,
                            study::html_report(study::ReportKind::kCompare, "Comparison of architectures", json));
  io::write_file_atomically(out / kCurves, study::svg_document(study::curve_plots(*found)));
  io::write_file_atomically(out / kAblations, study::svg_document(study::comparison_ablation_plots(*found)));
  nlohmann::ordered_json plain = json;
  plain.erase("plots");
  io::write_file_atomically(out / kResults,
                            plain.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  if (o.json) return print_json(plain);
  print_result(*found);
  print(fmt::format("\nThe report is {}: open it in a browser.\n", (out / kReport).string()));
}

}  // namespace

void add_compare(CLI::App& program) {
  auto options = std::make_shared<CompareFlags>();
  CompareFlags& o = *options;
  train::TrainOptions& t = o.compare.train;
  // Sized for --preset tiny: twelve runs in some minutes on two cores.
  t.steps = 140, t.lr = 4e-3, t.eval_every = 0, t.eval_sequences = 48, t.keep = 1;
  o.compare.ablation_sequences = 48;
  CLI::App* command =
      add_command(program, "compare",
                  "Train conventional, fine-grained, shared-expert and dense models at equal compute, and compare them");
  command->add_option(
      "--preset", o.preset,
      "DeepSeekMoE architecture to compare (default: tiny): " + CLI::detail::join(ModelConfig::preset_names(), ", "));
  command->add_option("--config", o.config, "The same, as a config.json");
  command
      ->add_option("--granularity", o.compare.split,
                   "Experts that a conventional expert was split into (m; 0: as many as leave two active)")
      ->capture_default_str();
  command
      ->add_option(
          "--also", o.compare.also,
          "Further models: SHARED+ACTIVE/ROUTED, with as many expert parameters as the others in all; xF behind it "
          "makes them F times as wide; densexF: the dense model, F times as wide")
      ->delimiter(',');
  command
      ->add_option("--ablation-sequences", o.compare.ablation_sequences,
                   "Held-out sequences on which the ablations and the routing of each model are measured")
      ->check(in_range(kPositive))
      ->capture_default_str();
  command->add_option("-o,--out", o.out, "Output folder for runs and report; run the same command again to resume")
      ->required();
  command->add_option("--tokenizer", o.tokenizer, "Folder with a tokenizer (not needed for builtin data)");
  command->add_option("--seeds", o.compare.seeds, "Runs per architecture, with consecutive seeds")
      ->check(in_range(kPositive))
      ->capture_default_str();
  add_flags(*command, t,
            {.only = {"data", "field", "label-by", "label-field", "seed", "steps", "batch-size", "seq-len", "lr",
                      "warmup-steps", "holdout", "eval-data", "eval-every", "eval-sequences", "dtype"},
             .help = {{"data", "Training data: builtin, or text files, .jsonl files and folders"},
                      {"seed", "First seed, of the weights and of the order of the data"},
                      {"steps", "Optimizer steps per run"},
                      {"batch-size", "Sequences per optimizer step"},
                      {"lr", "Peak learning rate"},
                      {"eval-every", "Steps between evaluations on the held-out data (0: a seventh of the steps)"}}});
  add_flags(*command, o.where,
            {.only = {"device", "threads"},
             .help = {{"device", "Where the models are trained (auto: a GPU if there is one and they fit it)"}}});
  command->add_flag("--json", o.json, "Print the result as JSON");
  command->footer("Example:\n  dsmoe compare --preset tiny -o comparison");
  command->callback([options] {
    run(*options, fmt::format("dsmoe compare {} --steps {} --seeds {}",
                              options->config.empty() ? "--preset " + (options->preset.empty() ? "tiny" : options->preset)
                                                      : "--config " + options->config,
                              options->compare.train.steps, options->compare.seeds));
  });
}

}  // namespace dsmoe::cli
