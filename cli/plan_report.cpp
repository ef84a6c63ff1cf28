#include "cli/plan_report.h"

#include <fmt/format.h>

#include "cli/format.h"
#include "cli/table.h"
#include "train/memory.h"

namespace dsmoe::cli {

namespace {

std::string percent(Index part, Index whole) {
  return fmt::format("{:.1f}%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string bytes(Index n) { return human_bytes(static_cast<double>(n)); }
std::string flops(Index n) { return human_flops(static_cast<double>(n)); }
std::string count(Index n) { return human_count(static_cast<double>(n)); }

std::string describe(const PlanResult& plan) {
  const ModelConfig& c = plan.config;
  std::string text = plan.title + "\n";
  if (plan.scope == PlanScope::kCounts) return text;
  text += fmt::format("  {} layer{} ({} MoE), hidden size {}", c.num_hidden_layers, c.num_hidden_layers == 1 ? "" : "s",
                      c.moe_layers(), c.hidden_size);
  if (c.moe_layers() > 0)
    text += fmt::format("; {} routed experts of width {}, {} per token, {} shared", c.routed_experts(),
                        c.moe_intermediate_size, c.experts_per_token(), c.shared_experts());
  if (plan.scope == PlanScope::kMoeLayers)
    text += "\n  The MoE layers alone; --layers and --vocab-size add attention and embeddings.";
  return text + "\n";
}

std::string parameter_text(const PlanResult& plan) {
  const ParameterCount n = count_parameters(plan.config);
  const PlanTotals t = plan_totals(plan.scope, plan.config, plan.context);
  Table table({"Parameters", "", "", ""});
  table.row({"total", thousands(t.parameters), count(t.parameters)});
  for (const PlanPart& part : plan_parts(n)) {
    if (part.parameters == 0 || (plan.scope == PlanScope::kMoeLayers && !part.moe)) continue;
    table.row({part.label, thousands(part.parameters), count(part.parameters), percent(part.parameters, t.parameters)});
  }
  table.row({"activated per token", thousands(t.activated), count(t.activated), percent(t.activated, t.parameters)});
  return table.str();
}

std::string flops_text(const PlanResult& plan) {
  const PlanTotals t = plan_totals(plan.scope, plan.config, plan.context);
  const bool model = plan.scope == PlanScope::kModel;
  Table table({model ? fmt::format("FLOPs per token at context {}", thousands(plan.context)) : "FLOPs per token", "", ""});
  table.row({"forward", thousands(t.forward_flops), flops(t.forward_flops)});
  table.row({"training", thousands(t.training_flops), flops(t.training_flops)});
  if (model) {
    const double sequence = static_cast<double>(t.training_flops) * static_cast<double>(plan.context);
    table.row({"training, a full sequence", "", human_flops(sequence)});
  }
  return table.str();
}

std::string gpu_training_text(const PlanResult& plan) {
  Table table({"Training on a GPU, " + thousands(plan.batch) + " x " + thousands(plan.context) + " tokens a pass", "about",
               "--recompute moe", "--recompute block"});
  using train::Recompute;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    table.row({std::string(to_string(dtype)) + ", AdamW", bytes(gpu_training_peak(plan, dtype, Recompute::kNone)),
               bytes(gpu_training_peak(plan, dtype, Recompute::kMoe)),
               bytes(gpu_training_peak(plan, dtype, Recompute::kBlock))});
  return table.str();
}

std::string memory_text(const PlanResult& plan) {
  const InferenceMemory m = inference_memory(plan.config, plan.context);
  Table inference({"Memory for inference", "f32", "bf16", "q8_0", "q4_0"});
  inference.row({"weights", bytes(m.weights_f32), bytes(m.weights_bf16), bytes(m.weights_q8_0), bytes(m.weights_q4_0)});
  inference.row({"KV cache per token", bytes(2 * m.kv_per_token), bytes(m.kv_per_token)});
  inference.row({"KV cache of " + thousands(plan.context) + " tokens", bytes(2 * m.kv_context), bytes(m.kv_context)});
  Table training({"Memory for training", "weights", "master", "gradients", "moments", "total"});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TrainingMemory t = training_memory(plan.config, dtype);
    training.row({std::string(to_string(dtype)) + ", AdamW", bytes(t.weights), bytes(t.master_weights), bytes(t.gradients),
                  bytes(t.moments), bytes(t.total())});
  }
  const std::string text = inference.str() + "\n" + training.str();
  if (plan.batch == 0) return text + "  Activations come on top and grow with the batch.\n";
  return text + "\n" + gpu_training_text(plan);
}

std::string seconds(double s) { return s < 0.1 ? fmt::format("{:.2f} ms", 1e3 * s) : fmt::format("{:.3f} s", s); }

std::string assumed_loads(const PlanResult& plan) {
  if (plan.config.moe_layers() == 0) return "";
  if (!plan.loads.counted.empty()) return "  With experts as busy as they were counted.\n";
  return fmt::format(
      "  With {} its even share for the busiest expert of a layer; --expert-load-max or --expert-loads say better.\n",
      plan.loads.busiest_expert > 0 ? fmt::format("{:.3g} times", plan.loads.busiest_expert) : "twice");
}

std::string cluster_text(const PlanResult& plan) {
  const train::Cluster& c = *plan.cluster;
  const train::TrainOptions o = step_options(plan);
  const auto best = train::best_layout(plan.config, o, plan.layout.ranks, c, plan.loads, plan.layout.per_machine);
  const std::string inside = c.inside > 0 ? fmt::format("{:.3g} GB/s in a machine and ", c.inside * 1e-9) : "";
  Table table({fmt::format("A step on {} x {} at best, bf16, {}{:.3g} GB/s between them", plan.layout.ranks, c.card.name,
                           inside, c.link * 1e-9),
               "this layout", best ? "the best one" : ""});
  const train::StepTime here = train::step_time(plan.config, o, plan.layout, c, plan.loads);
  const double at_peak = here.compute * c.efficiency;
  const auto row = [&](const char* name, auto&& cell) {
    table.row({name, cell(here), best ? cell(best->time) : std::string()});
  };
  row("compute", [](const train::StepTime& t) { return seconds(t.compute); });
  row("tokens to their experts and back", [](const train::StepTime& t) { return seconds(t.tokens); });
  row("  of that under the shared experts", [](const train::StepTime& t) { return seconds(t.hidden); });
  row("sums of gradients", [](const train::StepTime& t) { return seconds(t.gradients); });
  row("  of that under backward", [](const train::StepTime& t) { return seconds(t.hidden_gradients); });
  row("step, if experts were used alike", [](const train::StepTime& t) { return seconds(t.total() - t.uneven); });
  row("busiest rank of a layer, times its even share",
      [](const train::StepTime& t) { return fmt::format("{:.2f}", t.busiest_rank); });
  row("waiting for it", [](const train::StepTime& t) { return seconds(t.uneven); });
  row("step", [](const train::StepTime& t) { return seconds(t.total()); });
  row("share of the cards' peak",
      [&](const train::StepTime& t) { return fmt::format("{:.1f}%", 100 * at_peak / t.total()); });
  const auto memory = [&](std::size_t n) {
    return human_bytes(static_cast<double>(n)) + (static_cast<double>(n) > c.card.memory ? ", does not fit" : "");
  };
  table.row({"memory of a rank", memory(train::gpu_training_bytes(plan.config, o, plan.layout)),
             best ? memory(best->memory) : ""});
  const auto name = [](const train::RankLayout& l, train::Recompute recompute) {
    return fmt::format("experts over {}, ZeRO {}{}", l.expert_parallel, l.zero,
                       recompute != train::Recompute::kNone ? ", recompute" : "");
  };
  const std::string text = table.str() + assumed_loads(plan);
  if (!best) return text + "  No layout of so many ranks fits these cards; use more of them or a smaller batch.\n";
  return text + fmt::format("  The best one of {} ranks: {}.\n", plan.layout.ranks, name(best->layout, best->recompute));
}

std::string ranks_text(const PlanResult& plan) {
  const train::RankLayout& l = plan.layout;
  std::string title = fmt::format("Training by {} ranks", thousands(l.ranks));
  if (l.expert_parallel > 1) title += fmt::format(", experts over {}", thousands(l.expert_parallel));
  if (l.zero > 0) title += fmt::format(", ZeRO {}", l.zero);
  Table memory({title, "weights", "master", "gradients", "moments", "total"});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TrainingMemory m = train::rank_memory(plan.config, dtype, l);
    memory.row({std::string(to_string(dtype)) + ", memory of a rank", bytes(m.weights), bytes(m.master_weights),
                bytes(m.gradients), bytes(m.moments), bytes(m.total())});
  }
  if (plan.batch == 0) return memory.str() + "  With --batch-size: what a rank sends in a step.\n";
  Table traffic({"Sent by a rank in a step of " + thousands(plan.batch) + " x " + thousands(plan.context) + " tokens",
                 "gradients", "tokens", "total"});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const train::RankTraffic t = train::rank_traffic(plan.config, dtype, l, plan.batch * plan.context);
    traffic.row({to_string(dtype), human_bytes(t.gradients), human_bytes(t.tokens), human_bytes(t.total())});
    if (l.per_machine > 0)
      traffic.row({"  to other machines", human_bytes(t.gradients_between), human_bytes(t.tokens_between),
                   human_bytes(t.gradients_between + t.tokens_between)});
  }
  const std::string text = memory.str() + "\n" + traffic.str() + "  With tokens that choose experts at random.\n";
  return plan.cluster ? text + "\n" + cluster_text(plan) : text;
}

std::string architecture_text(const PlanResult& plan) {
  const auto plans = compare_architectures(*plan.segmentation);
  constexpr std::size_t kWidestCell = 28;
  Table table({fmt::format("Architectures, m = {}", plan.segmentation->split), "(a) " + plans[0].label,
               "(b) " + plans[1].label, "(c) " + plans[2].label});
  std::string long_counts;
  const auto row = [&](const char* name, auto&& cell) {
    table.row({name, cell(plans[0]), cell(plans[1]), cell(plans[2])});
  };
  row("routed experts", [](const ArchitecturePlan& p) { return thousands(p.architecture.routed); });
  row("active per token", [](const ArchitecturePlan& p) { return thousands(p.architecture.active); });
  row("shared experts", [](const ArchitecturePlan& p) { return thousands(p.architecture.shared); });
  if (plan.segmentation->expert_size > 0)
    row("expert width", [](const ArchitecturePlan& p) { return thousands(p.architecture.width); });
  row("combinations", [&](const ArchitecturePlan& p) {
    const std::string exact = thousands(p.combinations);
    if (exact.size() <= kWidestCell) return exact;
    long_counts += fmt::format("  {} combinations: {}\n", p.label, exact);
    return fmt::format("{}.{}e{}", p.combinations[0], p.combinations.substr(1, 3), p.combinations.size() - 1);
  });
  if (plan.scope != PlanScope::kCounts) {
    const auto with = [&](const ArchitecturePlan& p) {
      return plan_totals(plan.scope, with_architecture(plan.config, p.architecture), plan.context);
    };
    row("parameters", [&](const ArchitecturePlan& p) { return thousands(with(p).parameters); });
    row("activated", [&](const ArchitecturePlan& p) { return thousands(with(p).activated); });
    row("FLOPs per token", [&](const ArchitecturePlan& p) { return thousands(with(p).forward_flops); });
    long_counts += "  Experts and their work are equal; only the router has more or fewer rows.\n";
  }
  return table.str() + long_counts;
}

}  // namespace

std::string plan_text(const PlanResult& plan) {
  std::string text = describe(plan);
  const auto section = [&](const std::string& lines) { text.append("\n").append(lines); };
  if (plan.scope != PlanScope::kCounts) section(parameter_text(plan));
  if (plan.scope != PlanScope::kCounts) section(flops_text(plan));
  if (plan.scope == PlanScope::kModel) section(memory_text(plan));
  if (plan.scope == PlanScope::kModel && plan.layout.ranks > 1) section(ranks_text(plan));
  if (plan.segmentation) section(architecture_text(plan));
  return text;
}

}  // namespace dsmoe::cli
