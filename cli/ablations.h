// The part of dsmoe eval that changes the routing.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "dsmoe/evaluate.h"
#include "study/ablation.h"

namespace dsmoe::cli {

struct AblationFlags {
  study::AblationRequest request;
  std::string plot;

  void add(CLI::App& command);
  bool wanted() const { return !request.empty() || !plot.empty(); }
};

struct AblationOutput {
  bool json = false, quiet = false;
};

// Evaluates the sequences once as the model is and once for each change, and prints a table (or JSON).
void run_ablations(const AblationFlags& flags, const Model& model, const EvaluateOptions& options,
                   const TokenSequences& sequences, const AblationOutput& output);

}  // namespace dsmoe::cli
