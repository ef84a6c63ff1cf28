// Ablations (section 4.5 of the paper): the loss with each token's top experts masked, without shared experts, with another
// number of experts per token, or with single experts disabled.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsmoe/options.h"
#include "dsmoe/routing_overrides.h"
#include "infer/evaluate.h"
#include "study/svg_plot.h"

namespace dsmoe::study {

enum class AblationKind { kNone, kMaskTop, kNoShared, kTopK, kDisable };
const char* to_string(AblationKind kind);

struct Ablation {
  AblationKind kind = AblationKind::kNone;
  std::string label;
  double value = 0;  // the masked share of the experts, or the number of experts per token
  RoutingOverrides overrides;
};

struct AblationRequest {
  std::vector<std::string> mask_top;  // "1/16", "0.0625"
  std::vector<Index> top_k;
  std::vector<std::string> disable;  // "LAYER:EXPERT", all in one
  bool no_shared = false;

  bool empty() const { return mask_top.empty() && top_k.empty() && disable.empty() && !no_shared; }

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.mask_top, {"mask-top", "Mask this fraction of the routed experts, the highest-scoring of each token: 1/16,2/16"});
    v(o.no_shared, {"no-shared", "Drop the shared experts and select as many more routed ones"});
    v(o.top_k, {"top-k", "Select this many routed experts per token; comma-separated"});
    v(o.disable, {"disable", "Disable single experts, as LAYER:EXPERT: 3:17,3:18"});
  }
};

// The model as it is, then each change on its own. Throws when the model cannot be changed so.
std::vector<Ablation> plan_ablations(const AblationRequest& request, const ModelConfig& config);

struct AblationResult {
  Ablation ablation;
  Evaluation loss;
};

// `progress` (may be empty) is called with the tokens done, counted over all ablations.
std::vector<AblationResult> run_ablations(Context& ctx, const Transformer& model, DType cache_dtype,
                                          std::span<const std::vector<std::int32_t>> sequences,
                                          const std::vector<Ablation>& ablations,
                                          const std::function<void(std::int64_t tokens)>& progress = {});

// Loss over the masked share and over the experts per token, as far as there are such results. One series per model.
struct AblationSeries {
  std::string label;
  std::vector<AblationResult> results;
  Index experts_per_token = 0;  // of the model as it is
};
std::vector<Plot> ablation_plots(const std::vector<AblationSeries>& series);

}  // namespace dsmoe::study
