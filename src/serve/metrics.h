// The engine's numbers as Prometheus reads them (text format 0.0.4).
#pragma once

#include <string>

#include "infer/engine_stats.h"

namespace dsmoe::serve {

std::string metrics_text(const infer::EngineStats& stats);

}  // namespace dsmoe::serve
