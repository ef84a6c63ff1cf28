#include "cli/plan_report.h"

#include <fmt/format.h>

#include "cli/format.h"
#include "cli/table.h"

namespace dsmoe::cli {

namespace {

using Json = nlohmann::ordered_json;

// Of a whole model or of its MoE layers, whichever the plan is about.
struct Totals {
  Index parameters = 0;
  Index activated = 0;
  Index forward_flops = 0;
  Index training_flops = 0;
};

Totals totals(PlanScope scope, const ModelConfig& config, Index context) {
  const ParameterCount n = count_parameters(config);
  if (scope == PlanScope::kMoeLayers) return {n.moe(), n.moe_activated, 2 * n.moe_activated, 6 * n.moe_activated};
  return {n.total, n.activated, forward_flops(config, context), training_flops(config, context)};
}

struct Part {
  const char* key;
  const char* label;
  Index parameters;
  bool moe;
};

std::vector<Part> parts(const ParameterCount& n) {
  return {{"embedding", "  embedding", n.embedding, false},
          {"attention", "  attention", n.attention, false},
          {"dense_mlp", "  dense layers", n.dense_mlp, false},
          {"routed_experts", "  routed experts", n.routed_experts, true},
          {"shared_experts", "  shared experts", n.shared_experts, true},
          {"router", "  router", n.router, true},
          {"norm", "  norms", n.norm, false},
          {"head", "  head", n.head, false}};
}

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
  const Totals t = totals(plan.scope, plan.config, plan.context);
  Table table({"Parameters", "", "", ""});
  table.row({"total", thousands(t.parameters), count(t.parameters)});
  for (const Part& part : parts(n)) {
    if (part.parameters == 0 || (plan.scope == PlanScope::kMoeLayers && !part.moe)) continue;
    table.row({part.label, thousands(part.parameters), count(part.parameters), percent(part.parameters, t.parameters)});
  }
  table.row({"activated per token", thousands(t.activated), count(t.activated), percent(t.activated, t.parameters)});
  return table.str();
}

std::string flops_text(const PlanResult& plan) {
  const Totals t = totals(plan.scope, plan.config, plan.context);
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
  return inference.str() + "\n" + training.str() + "  Activations come on top and grow with the batch.\n";
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
      return totals(plan.scope, with_architecture(plan.config, p.architecture), plan.context);
    };
    row("parameters", [&](const ArchitecturePlan& p) { return thousands(with(p).parameters); });
    row("activated", [&](const ArchitecturePlan& p) { return thousands(with(p).activated); });
    row("FLOPs per token", [&](const ArchitecturePlan& p) { return thousands(with(p).forward_flops); });
    long_counts += "  Experts and their work are equal; only the router has more or fewer rows.\n";
  }
  return table.str() + long_counts;
}

Json memory_json(const PlanResult& plan) {
  const InferenceMemory m = inference_memory(plan.config, plan.context);
  Json training;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TrainingMemory t = training_memory(plan.config, dtype);
    training[to_string(dtype)] = {{"weights", t.weights},
                                  {"master_weights", t.master_weights},
                                  {"gradients", t.gradients},
                                  {"moments", t.moments},
                                  {"total", t.total()}};
  }
  return {
      {"inference",
       {{"weights", {{"f32", m.weights_f32}, {"bf16", m.weights_bf16}, {"q8_0", m.weights_q8_0}, {"q4_0", m.weights_q4_0}}},
        {"kv_cache_per_token", m.kv_per_token},
        {"kv_cache", m.kv_context}}},
      {"training", training}};
}

}  // namespace

std::string plan_text(const PlanResult& plan) {
  std::string text = describe(plan);
  const auto section = [&](const std::string& lines) { text.append("\n").append(lines); };
  if (plan.scope != PlanScope::kCounts) section(parameter_text(plan));
  if (plan.scope != PlanScope::kCounts) section(flops_text(plan));
  if (plan.scope == PlanScope::kModel) section(memory_text(plan));
  if (plan.segmentation) section(architecture_text(plan));
  return text;
}

Json plan_json(const PlanResult& plan) {
  constexpr const char* kScopes[] = {"counts", "moe_layers", "model"};
  Json out = {{"model", plan.title}, {"scope", kScopes[static_cast<int>(plan.scope)]}};
  const auto add_totals = [&](Json& object, const ModelConfig& config) {
    const Totals t = totals(plan.scope, config, plan.context);
    object["parameters"] = t.parameters;
    object["activated_parameters"] = t.activated;
    object["flops_per_token"] = t.forward_flops;
    object["training_flops_per_token"] = t.training_flops;
  };
  if (plan.scope != PlanScope::kCounts) add_totals(out, plan.config);
  if (plan.scope == PlanScope::kModel) {
    const ParameterCount n = count_parameters(plan.config);
    out["tensors"] = n.tensors;
    for (const Part& part : parts(n)) out["parameters_by_part"][part.key] = part.parameters;
    out["context"] = plan.context;
    out["memory"] = memory_json(plan);
  }
  out["combinations"] = nullptr;
  out["architectures"] = Json::array();
  if (!plan.segmentation) return out;
  for (const ArchitecturePlan& p : compare_architectures(*plan.segmentation)) {
    Json entry = {{"name", p.label},
                  {"routed", p.architecture.routed},
                  {"active", p.architecture.active},
                  {"shared", p.architecture.shared},
                  {"width", p.architecture.width > 0 ? Json(p.architecture.width) : Json(nullptr)},
                  {"combinations", p.combinations}};
    if (plan.scope != PlanScope::kCounts) add_totals(entry, with_architecture(plan.config, p.architecture));
    out["architectures"].push_back(entry);
    out["combinations"] = p.combinations;  // the last is the model's own
  }
  return out;
}

}  // namespace dsmoe::cli
