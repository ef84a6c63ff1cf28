// Runs a model over labelled data and keeps what its experts did: the data of the report.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "infer/evaluate.h"
#include "study/agreement.h"
#include "study/labelled_data.h"
#include "study/routing_study.h"
#include "study/trace.h"

namespace dsmoe::study {

// The beginning of a domain's text, with every choice: what the report colours.
struct TextSample {
  Index domain = 0;
  std::vector<std::int32_t> ids;
  std::vector<std::vector<std::int32_t>> experts;  // by layer, [T * K]
  std::vector<std::vector<float>> weights;         // the same
};

struct Inspection {
  explicit Inspection(RoutingShape shape) : study(std::move(shape)) {}

  RoutingStudy study;
  std::vector<std::string> domains;
  std::vector<Evaluation> losses;  // by domain; empty when the routing came from a trace
  std::vector<TextSample> samples;
  std::optional<RoutingAgreement> agreement;
  std::vector<Evaluation> other_losses;  // of the model compared with

  Evaluation loss() const { return sum(losses); }
  Evaluation other_loss() const { return sum(other_losses); }
  static Evaluation sum(const std::vector<Evaluation>& parts);
};

struct InspectOptions {
  DType cache_dtype = DType::kF32;
  Index sample_tokens = 2000;          // of the text view, all domains together
  const Transformer* other = nullptr;  // compare routing with this model's
  TraceWriter* trace = nullptr;        // write the trace too
  std::function<void(std::int64_t tokens, double loss)> progress;
};

Inspection inspect(Context& ctx, const Transformer& model, LabelledData& data, const InspectOptions& options = {});
// From a trace instead of a model.
Inspection inspect(Context& ctx, TraceReader& trace, const InspectOptions& options = {});

}  // namespace dsmoe::study
