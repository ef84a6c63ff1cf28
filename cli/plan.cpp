// dsmoe plan: what a model needs, from a preset, a config.json or numbers of experts.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/plan_report.h"
#include "cli/ranges.h"

namespace dsmoe::cli {

namespace {

struct PlanFlags {
  std::string preset;
  std::string config;
  std::optional<Index> experts;
  Index active = 0;
  std::optional<Index> split;
  Index shared = 0;
  Index hidden_size = 0;
  Index expert_size = 0;
  Index layers = 0;
  Index vocab_size = 0;
  Index context = 0;
  bool json = false;
};

PlanResult plan_model(const PlanFlags& options) {
  PlanResult plan;
  const bool preset = !options.preset.empty();
  plan.config = preset ? ModelConfig::preset(options.preset) : ModelConfig::load(options.config);
  plan.title = preset ? options.preset : options.config;
  plan.context = options.context != 0 ? options.context : plan.config.max_position_embeddings;
  if (plan.config.moe_layers() == 0) return plan;
  const Architecture own = architecture_of(plan.config);
  plan.segmentation = Segmentation::of(own, options.split ? *options.split : Segmentation::coarsest_split(own));
  return plan;
}

PlanResult plan_numbers(const PlanFlags& options) {
  PlanResult plan;
  const Segmentation layer{*options.experts, options.active, options.split.value_or(1), options.shared,
                           options.expert_size};
  const Architecture own = layer.deepseek_moe();  // refuses what cannot be
  plan.segmentation = layer;
  plan.title = fmt::format("N = {}, K = {}, m = {}, Ks = {}", layer.experts, layer.active, layer.split, layer.shared);
  plan.scope = PlanScope::kCounts;
  if (options.hidden_size == 0) return plan;
  plan.scope = options.vocab_size != 0 ? PlanScope::kModel : PlanScope::kMoeLayers;
  plan.config = uniform_model(own, options.hidden_size, std::max<Index>(1, options.layers), options.vocab_size);
  plan.config.validate();
  constexpr Index kDefaultContext = 4096;
  plan.context = options.context != 0 ? options.context : kDefaultContext;
  return plan;
}

void run(const PlanFlags& options) {
  if (options.preset.empty() && options.config.empty() && !options.experts)
    throw UsageError("plan needs --preset, --config, or -N and -K");
  const bool model = !options.preset.empty() || !options.config.empty();
  const PlanResult plan = model ? plan_model(options) : plan_numbers(options);
  options.json ? print_json(plan_json(plan)) : print(plan_text(plan));
}

}  // namespace

void add_plan(CLI::App& program) {
  CLI::App* command = add_command(program, "plan", "Estimate parameters, FLOPs, memory and expert combinations of a model");
  command->footer(
      "Examples:\n"
      "  dsmoe plan --preset deepseek-moe-16b\n"
      "  dsmoe plan --config my-model/config.json --context 32768 --json\n"
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
