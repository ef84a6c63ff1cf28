// The part of dsmoe eval that changes the routing.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "cli/model_options.h"
#include "study/ablation.h"

namespace dsmoe::cli {

struct AblationOptions {
  study::AblationRequest request;
  std::string plot;

  void add(CLI::App& command);
  bool wanted() const { return !request.empty() || !plot.empty(); }
};

// Evaluates the sequences once as the model is and once for each change, and prints a table (or JSON).
void run_ablations(const AblationOptions& options, const ModelOptions& model_options, const Transformer& model,
                   const std::vector<std::vector<std::int32_t>>& sequences, bool json);

}  // namespace dsmoe::cli
