// What `dsmoe plan` found, as tables.
#pragma once

#include <string>

#include "api/plan_report.h"

namespace dsmoe::cli {

std::string plan_text(const PlanResult& plan);

}  // namespace dsmoe::cli
