#include "api/plan_report.h"

#include "train/memory.h"

namespace dsmoe {

PlanTotals plan_totals(PlanScope scope, const ModelConfig& config, Index context) {
  const ParameterCount n = count_parameters(config);
  if (scope == PlanScope::kMoeLayers) return {n.moe(), n.moe_activated, 2 * n.moe_activated, 6 * n.moe_activated};
  return {n.total, n.activated, forward_flops(config, context), training_flops(config, context)};
}

std::vector<PlanPart> plan_parts(const ParameterCount& n) {
  return {{"embedding", "  embedding", n.embedding, false},
          {"attention", "  attention", n.attention, false},
          {"dense_mlp", "  dense layers", n.dense_mlp, false},
          {"routed_experts", "  routed experts", n.routed_experts, true},
          {"shared_experts", "  shared experts", n.shared_experts, true},
          {"router", "  router", n.router, true},
          {"norm", "  norms", n.norm, false},
          {"head", "  head", n.head, false}};
}

Index gpu_training_peak(const PlanResult& plan, DType dtype, train::Recompute recompute) {
  train::TrainOptions o;
  o.dtype = dtype, o.recompute = recompute;
  o.batch_size = plan.batch, o.seq_len = plan.context;
  return static_cast<Index>(train::gpu_training_bytes(plan.config, o));
}

train::TrainOptions step_options(const PlanResult& plan) {
  train::TrainOptions o;
  o.dtype = DType::kBF16, o.batch_size = plan.batch, o.seq_len = plan.context;
  return o;
}

namespace {

using Json = nlohmann::ordered_json;

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
  Json gpu;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    if (plan.batch > 0)
      gpu[to_string(dtype)] = {{"peak", gpu_training_peak(plan, dtype, train::Recompute::kNone)},
                               {"peak_with_recompute_moe", gpu_training_peak(plan, dtype, train::Recompute::kMoe)},
                               {"peak_with_recompute", gpu_training_peak(plan, dtype, train::Recompute::kBlock)}};
  Json memory = {
      {"inference",
       {{"weights", {{"f32", m.weights_f32}, {"bf16", m.weights_bf16}, {"q8_0", m.weights_q8_0}, {"q4_0", m.weights_q4_0}}},
        {"kv_cache_per_token", m.kv_per_token},
        {"kv_cache", m.kv_context}}},
      {"training", training}};
  if (plan.batch > 0) memory["gpu_training"] = gpu;
  return memory;
}

Json time_json(const train::StepTime& t, double at_peak) {
  return {{"compute", t.compute},
          {"tokens", t.tokens},
          {"gradients", t.gradients},
          {"hidden", t.hidden},
          {"hidden_gradients", t.hidden_gradients},
          {"busiest_rank", t.busiest_rank},
          {"uneven", t.uneven},
          {"total", t.total()},
          {"share_of_peak", at_peak / t.total()}};
}

Json cluster_json(const PlanResult& plan) {
  const train::TrainOptions o = step_options(plan);
  const train::StepTime time = train::step_time(plan.config, o, plan.layout, *plan.cluster, plan.loads);
  const double at_peak = time.compute * plan.cluster->efficiency;
  Json out = {{"card", plan.cluster->card.name}, {"link", plan.cluster->link}, {"efficiency", plan.cluster->efficiency}};
  out["step_seconds"] = time_json(time, at_peak);
  out["best_layout"] = nullptr;
  if (const auto best =
          train::best_layout(plan.config, o, plan.layout.ranks, *plan.cluster, plan.loads, plan.layout.per_machine))
    out["best_layout"] = {{"expert_parallel", best->layout.expert_parallel},
                          {"zero", best->layout.zero},
                          {"recompute", best->recompute != train::Recompute::kNone},
                          {"memory", best->memory},
                          {"step_seconds", time_json(best->time, at_peak)}};
  return out;
}

Json ranks_json(const PlanResult& plan) {
  const train::RankLayout& l = plan.layout;
  Json out = {{"ranks", l.ranks}, {"expert_parallel", l.expert_parallel}, {"zero", l.zero}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TrainingMemory m = train::rank_memory(plan.config, dtype, l);
    Json& entry = out[to_string(dtype)];
    entry["memory"] = {{"weights", m.weights},
                       {"master_weights", m.master_weights},
                       {"gradients", m.gradients},
                       {"moments", m.moments},
                       {"total", m.total()}};
    if (plan.batch == 0) continue;
    const train::RankTraffic t = train::rank_traffic(plan.config, dtype, l, plan.batch * plan.context);
    entry["bytes_sent_per_step"] = {{"gradients", t.gradients}, {"tokens", t.tokens}, {"total", t.total()}};
    if (l.per_machine > 0)
      entry["bytes_sent_per_step"]["between_machines"] = {{"gradients", t.gradients_between}, {"tokens", t.tokens_between}};
  }
  if (plan.cluster) out["on_cards"] = cluster_json(plan);
  return out;
}

}  // namespace

Json plan_json(const PlanResult& plan) {
  constexpr const char* kScopes[] = {"counts", "moe_layers", "model"};
  Json out = {{"model", plan.title}, {"scope", kScopes[static_cast<int>(plan.scope)]}};
  const auto add_totals = [&](Json& object, const ModelConfig& config) {
    const PlanTotals t = plan_totals(plan.scope, config, plan.context);
    object["parameters"] = t.parameters;
    object["activated_parameters"] = t.activated;
    object["flops_per_token"] = t.forward_flops;
    object["training_flops_per_token"] = t.training_flops;
  };
  if (plan.scope != PlanScope::kCounts) add_totals(out, plan.config);
  if (plan.scope == PlanScope::kModel) {
    const ParameterCount n = count_parameters(plan.config);
    out["tensors"] = n.tensors;
    for (const PlanPart& part : plan_parts(n)) out["parameters_by_part"][part.key] = part.parameters;
    out["context"] = plan.context;
    out["memory"] = memory_json(plan);
    if (plan.layout.ranks > 1 || plan.cluster) out["training_by_ranks"] = ranks_json(plan);
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

}  // namespace dsmoe
