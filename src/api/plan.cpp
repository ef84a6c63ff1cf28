#include "dsmoe/plan.h"

#include <algorithm>

#include "api/plan_report.h"
#include "core/fail.h"
#include "study/report.h"

namespace dsmoe {

namespace {

PlanResult plan_model(const PlanRequest& request) {
  PlanResult plan;
  if (!request.preset.empty()) {
    plan.config = ModelConfig::preset(request.preset);
    plan.title = request.preset;
  } else if (!request.config.empty()) {
    plan.config = ModelConfig::load(request.config);
    plan.title = request.config;
  } else {
    plan.config = ModelConfig::from_json(request.config_json, "config");
    plan.title = "config";
  }
  plan.context = request.context != 0 ? request.context : plan.config.max_position_embeddings;
  if (plan.config.moe_layers() == 0) return plan;
  const Architecture own = architecture_of(plan.config);
  plan.segmentation = Segmentation::of(own, request.split ? *request.split : Segmentation::coarsest_split(own));
  return plan;
}

PlanResult plan_numbers(const PlanRequest& request) {
  PlanResult plan;
  const Segmentation layer{*request.experts, request.active, request.split.value_or(1), request.shared,
                           request.expert_size};
  const Architecture own = layer.deepseek_moe();  // refuses what cannot be
  plan.segmentation = layer;
  plan.title = fmt::format("N = {}, K = {}, m = {}, Ks = {}", layer.experts, layer.active, layer.split, layer.shared);
  plan.scope = PlanScope::kCounts;
  if (request.hidden_size == 0) return plan;
  require(request.expert_size > 0, "hidden-size needs expert-size");
  require(request.vocab_size == 0 || request.layers > 0, "vocab-size needs layers");
  plan.scope = request.vocab_size != 0 ? PlanScope::kModel : PlanScope::kMoeLayers;
  plan.config = uniform_model(own, request.hidden_size, std::max<Index>(1, request.layers), request.vocab_size);
  plan.config.validate();
  constexpr Index kDefaultContext = 4096;
  plan.context = request.context != 0 ? request.context : kDefaultContext;
  return plan;
}

}  // namespace

PlanResult make_plan(const PlanRequest& request) {
  const int given =
      !request.preset.empty() + !request.config.empty() + !request.config_json.empty() + request.experts.has_value();
  require(given == 1, "a plan needs one of preset, config and experts");
  for (const auto& [name, value] : {std::pair{"context", request.context},
                                    {"batch-size", request.batch},
                                    {"hidden-size", request.hidden_size},
                                    {"expert-size", request.expert_size},
                                    {"layers", request.layers},
                                    {"vocab-size", request.vocab_size}})
    require(value >= 0, "{} is {}; it must be at least 0", name, value);
  PlanResult plan = request.experts ? plan_numbers(request) : plan_model(request);
  plan.batch = request.batch;
  plan.layout = {request.ranks, request.expert_parallel, request.zero, request.partial_sums};
  plan.layout.per_machine = request.ranks_per_machine;
  require(request.link_inside >= 0 && (request.link_inside == 0 || request.ranks_per_machine > 0),
          "link-inside is {}; it is above 0, and needs ranks-per-machine", request.link_inside);
  require(request.ranks >= 1 && request.expert_parallel >= 1 && request.zero >= 0 && request.zero <= 2,
          "ranks and expert-parallel are at least 1, and zero is 0, 1 or 2; got {}, {} and {}", request.ranks,
          request.expert_parallel, request.zero);
  require(request.ranks == 1 || request.batch == 0 || request.batch >= request.ranks,
          "batch-size is {}, but {} ranks share a batch; give each at least one sequence", request.batch, request.ranks);
  if (!request.card.empty()) {
    require(request.batch > 0, "the time of a step needs a batch-size, of all ranks together");
    plan.cluster = {train::card_named(request.card), request.link, request.efficiency, request.link_inside};
    require(plan.scope == PlanScope::kModel, "the time of a step needs a whole model");
    plan.loads.busiest_expert = request.expert_load_max;
    if (!request.expert_loads.empty()) plan.loads.counted = study::read_expert_loads(request.expert_loads);
    plan.loads.check(plan.config);
    static_cast<void>(train::step_time(plan.config, step_options(plan), plan.layout, *plan.cluster));  // or an Error
  }
  require(request.ranks == 1 || plan.scope == PlanScope::kModel, "ranks needs a whole model");
  return plan;
}

std::string plan_json(const PlanRequest& request) { return plan_json(make_plan(request)).dump(); }

}  // namespace dsmoe
