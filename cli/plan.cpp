// dsmoe plan: what a model needs, from a preset, a config.json or numbers of experts.
#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/plan_report.h"
#include "cli/ranges.h"

namespace dsmoe::cli {

namespace {

struct PlanFlags : PlanRequest {
  bool json = false;
};

// "50GB/s", or a number of bytes.
double bytes_per_second(const char* flag, const std::string& text) {
  std::size_t end = 0;
  double number = 0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
  }
  const std::string unit = text.substr(end);
  const double scale = unit == "GB/s" ? 1e9 : unit == "MB/s" ? 1e6 : unit == "TB/s" ? 1e12 : unit.empty() ? 1 : 0;
  if (end == 0 || scale == 0 || !(number > 0)) throw UsageError(fmt::format("{} is a speed, for example 50GB/s", flag));
  return number * scale;
}

void run(const PlanFlags& options) {
  if (options.preset.empty() && options.config.empty() && !options.experts)
    throw UsageError("plan needs --preset, --config, or -N and -K");
  if (options.ranks > 1 && options.experts && options.vocab_size == 0) throw UsageError("--ranks needs a whole model");
  const PlanResult plan = make_plan(options);
  options.json ? print_json(plan_json(plan)) : print(plan_text(plan));
}

}  // namespace

void add_plan(CLI::App& program) {
  CLI::App* command = add_command(program, "plan", "Estimate parameters, FLOPs, memory and expert combinations of a model");
  command->footer(
      "Examples:\n"
      "  dsmoe plan --preset deepseek-moe-16b\n"
      "  dsmoe plan --config my-model/config.json --context 32768 --json\n"
      "  dsmoe plan --preset paper-2b --context 2048 --batch-size 16\n"
      "  dsmoe plan --preset paper-145b --ranks 64 --expert-parallel 8 --zero 1 --batch-size 512 --device h100 --link "
      "50GB/s\n"
      "  dsmoe plan -N 16 -K 2 -m 4 -s 1\n"
      "  dsmoe plan -N 16 -K 2 -m 4 -s 1 --hidden-size 1280 --expert-size 3392 --layers 9 --vocab-size 8192");
  const auto o = std::make_shared<PlanFlags>();
  const auto size = [&](const char* flag, Index& value, const char* help) {
    return command->add_option(flag, value, help)->type_name("INT")->check(in_range(kPositive));
  };
  auto* preset = command->add_option("--preset", o->preset,
                                     fmt::format("Known architecture: {}", fmt::join(ModelConfig::preset_names(), ", ")));
  auto* config = command->add_option("--config", o->config, "config.json, or the folder of a model")->excludes(preset);
  auto* experts = command->add_option("-N,--experts", o->experts, "Number of experts (N) of a conventional MoE layer");
  auto* active = command->add_option("-K,--active", o->active, "Experts per token (K) of the conventional layer");
  command->add_option("-m,--split", o->split,
                      "Granularity (m): split each expert into m smaller ones (with a model: how much it was split)");
  auto* shared = command->add_option("-s,--shared", o->shared, "Number of shared experts (Ks) among the split ones");
  auto* hidden = size("--hidden-size", o->hidden_size, "Hidden size of the model; adds the sizes of the MoE layers");
  auto* expert = size("--expert-size", o->expert_size, "Intermediate size of an expert before splitting");
  auto* layers = size("--layers", o->layers, "Number of layers, all of them MoE");
  auto* vocab = size("--vocab-size", o->vocab_size, "Vocabulary size; adds attention and embeddings");
  size("--context", o->context, "Context length for attention and the KV cache (default: the model's, or 4096)");
  size("--batch-size", o->batch,
       "Adds what training on a GPU takes with so many sequences of the context's length in a pass");
  auto* ranks =
      size("--ranks", o->ranks, "Adds what training by so many processes takes: memory of each, bytes that it sends");
  size("--expert-parallel", o->expert_parallel, "With --ranks: spread the routed experts over so many of them")
      ->needs(ranks);
  command->add_option("--zero", o->zero, "With --ranks: the stage of ZeRO, 1 or 2")->check(CLI::Range(0, 2))->needs(ranks);
  command->add_flag("--partial-sums", o->partial_sums, "With --expert-parallel: one sum per rank comes back")->needs(ranks);
  auto* per_machine =
      size("--ranks-per-machine", o->ranks_per_machine, "With --ranks: adds what goes to other machines")->needs(ranks);
  auto* device =
      command
          ->add_option("--device", o->card,
                       "With --ranks and --batch-size: how long a step takes at best on "
                       "such cards (a100, h100, h200, b200; or what a CPU reaches, as 230GFLOPS), and the best layout")
          ->needs(ranks);
  command
      ->add_option_function<std::string>(
          "--link", [o](const std::string& text) { o->link = bytes_per_second("--link", text); },
          "With --device: what a rank sends to others in a second, for example 50GB/s")
      ->needs(device);
  device->needs("--link");
  command
      ->add_option_function<std::string>(
          "--link-inside", [o](const std::string& text) { o->link_inside = bytes_per_second("--link-inside", text); },
          "With --device: the same to ranks of its own machine, where --link is to those of others")
      ->needs(device)
      ->needs(per_machine);
  command->add_option("--efficiency", o->efficiency, "With --device: share of the peak that one card by itself reaches")
      ->capture_default_str()
      ->needs(device);
  auto* most = command
                   ->add_option("--expert-load-max", o->expert_load_max,
                                "With --device: how many times its even share the busiest expert of a layer has, as in a "
                                "run's log (default: 2)")
                   ->needs(device);
  command
      ->add_option("--expert-loads", o->expert_loads,
                   "With --device: the experts' loads as dsmoe inspect --json has counted them, from this file")
      ->needs(device)
      ->excludes(most);
  command->add_flag("--json", o->json, "Print as JSON");
  experts->needs(active);
  active->needs(experts);
  shared->needs(experts);
  hidden->needs(experts)->needs(expert);
  expert->needs(hidden);
  layers->needs(hidden);
  vocab->needs(layers);
  experts->excludes(preset)->excludes(config);
  command->callback([o] { run(*o); });
}

}  // namespace dsmoe::cli
