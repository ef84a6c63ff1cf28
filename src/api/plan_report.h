// What a plan found, and its JSON. The command line makes tables of the same.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/plan.h"
#include "dsmoe/train_options.h"
#include "model/plan.h"
#include "train/rank_time.h"

namespace dsmoe {

enum class PlanScope { kCounts, kMoeLayers, kModel };  // numbers of experts alone; with sizes; a whole model

struct PlanResult {
  std::string title;
  PlanScope scope = PlanScope::kModel;
  ModelConfig config;                        // not used for kCounts
  Index context = 0;                         // kModel
  Index batch = 0;                           // sequences of a training pass; 0: not asked for
  train::RankLayout layout;                  // of training by many processes
  std::optional<train::Cluster> cluster;     // what they run on, when it was said
  train::ExpertLoads loads;                  // and how they are used
  std::optional<Segmentation> segmentation;  // none: no MoE layer
};

PlanResult make_plan(const PlanRequest& request);

// Of a whole model or of its MoE layers, whichever the plan is about.
struct PlanTotals {
  Index parameters = 0;
  Index activated = 0;
  Index forward_flops = 0;
  Index training_flops = 0;
};
PlanTotals plan_totals(PlanScope scope, const ModelConfig& config, Index context);

struct PlanPart {
  const char* key;
  const char* label;
  Index parameters;
  bool moe;
};
std::vector<PlanPart> plan_parts(const ParameterCount& count);

// The peak of training on a GPU with AdamW.
Index gpu_training_peak(const PlanResult& plan, DType dtype, train::Recompute recompute);

// The options of a run that this is a step of, in bf16.
train::TrainOptions step_options(const PlanResult& plan);

// Stable keys; numbers of combinations are strings, since they do not fit in a JSON number.
nlohmann::ordered_json plan_json(const PlanResult& plan);

}  // namespace dsmoe
