// What `dsmoe plan` found, and its two forms: tables, and JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/plan.h"

namespace dsmoe::cli {

enum class PlanScope { kCounts, kMoeLayers, kModel };  // numbers of experts alone; with sizes; a whole model

struct PlanResult {
  std::string title;
  PlanScope scope = PlanScope::kModel;
  ModelConfig config;                        // not used for kCounts
  Index context = 0;                         // kModel
  std::optional<Segmentation> segmentation;  // none: no MoE layer
};

std::string plan_text(const PlanResult& plan);
// Stable keys; numbers of combinations are strings, since they do not fit in a JSON number.
nlohmann::ordered_json plan_json(const PlanResult& plan);

}  // namespace dsmoe::cli
