#include "study/ablation.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/fail.h"

namespace dsmoe::study {

namespace {

// The whole text as a number.
template <class T>
bool parse(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

double parse_share(const std::string& text) {
  const std::size_t slash = text.find('/');
  double over = 0, under = 1;
  const bool good = parse(std::string_view(text).substr(0, slash), over) &&
                    (slash == std::string::npos || parse(std::string_view(text).substr(slash + 1), under));
  require(good && under > 0 && over >= 0 && over < under,
          "\"{}\" is no share of the experts to mask; expected for example 1/16", text);
  return over / under;
}

std::pair<Index, Index> parse_expert(const std::string& text, const ModelConfig& config) {
  const std::size_t colon = text.find(':');
  Index layer = -1, expert = -1;
  require(colon != std::string::npos && parse(std::string_view(text).substr(0, colon), layer) &&
              parse(std::string_view(text).substr(colon + 1), expert),
          "\"{}\" is no LAYER:EXPERT; expected for example 3:17", text);
  require(layer >= 0 && layer < config.num_hidden_layers && config.is_moe_layer(layer), "layer {} of {} is not a MoE layer",
          layer, config.num_hidden_layers);
  require(expert >= 0 && expert < config.routed_experts(), "there is no expert {}, only 0 to {}", expert,
          config.routed_experts() - 1);
  return {layer, expert};
}

}  // namespace

const char* to_string(AblationKind kind) {
  switch (kind) {
    case AblationKind::kNone: return "none";
    case AblationKind::kMaskTop: return "mask-top";
    case AblationKind::kNoShared: return "no-shared";
    case AblationKind::kTopK: return "top-k";
    case AblationKind::kDisable: return "disable";
  }
  return "unknown";
}

std::vector<Ablation> plan_ablations(const AblationRequest& request, const ModelConfig& config) {
  const Index experts = config.routed_experts(), k = config.experts_per_token(), shared = config.shared_experts();
  require(config.moe_layers() > 0, "this model has no MoE layer, so there is no routing to change");
  std::vector<Ablation> out = {{AblationKind::kNone, "as it is", 0, {}}};
  for (const std::string& text : request.mask_top) {
    const double share = parse_share(text);
    const auto masked = static_cast<Index>(std::llround(share * static_cast<double>(experts)));
    out.push_back({AblationKind::kMaskTop,
                   fmt::format("top {} masked ({} of {})", text, masked, experts),
                   share,
                   {.skip_best = masked}});
  }
  if (request.no_shared) {
    require(shared > 0, "this model has no shared experts to leave out");
    out.push_back({AblationKind::kNoShared,
                   fmt::format("no shared, {} routed instead of {} + {}", k + shared, shared, k),
                   0,
                   {.drop_shared = true}});
  }
  for (const Index n : request.top_k) {
    require(n >= 1 && n <= experts, "{} experts per token of {} routed ones", n, experts);
    out.push_back({AblationKind::kTopK,
                   fmt::format("{} routed per token instead of {}", n, k),
                   static_cast<double>(n),
                   {.experts_per_token = n}});
  }
  if (!request.disable.empty()) {
    Ablation a{AblationKind::kDisable, "", 0, {}};
    for (const std::string& text : request.disable) a.overrides.disabled.push_back(parse_expert(text, config));
    std::sort(a.overrides.disabled.begin(), a.overrides.disabled.end());
    a.overrides.disabled.erase(std::unique(a.overrides.disabled.begin(), a.overrides.disabled.end()),
                               a.overrides.disabled.end());
    std::vector<std::string> names;
    for (const auto& [layer, expert] : a.overrides.disabled) names.push_back(fmt::format("{}:{}", layer, expert));
    a.label =
        names.size() > 4 ? fmt::format("{} experts off", names.size()) : fmt::format("{} off", fmt::join(names, ", "));
    out.push_back(std::move(a));
  }
  // Refuse before anything runs.
  for (const Ablation& a : out)
    for (Index layer = 0; layer < config.num_hidden_layers; ++layer)
      if (config.is_moe_layer(layer)) static_cast<void>(a.overrides.apply(config.moe(layer)));
  return out;
}

std::vector<AblationResult> run_ablations(Context& ctx, const Transformer& model, DType cache_dtype,
                                          std::span<const std::vector<std::int32_t>> sequences,
                                          const std::vector<Ablation>& ablations,
                                          const std::function<void(std::int64_t tokens)>& progress) {
  require(std::any_of(sequences.begin(), sequences.end(), [](const auto& s) { return s.size() > 1; }),
          "no token is scored: no sequence has two tokens");
  std::vector<AblationResult> out;
  std::int64_t done = 0;
  for (const Ablation& a : ablations) {
    Evaluator evaluator(ctx, model, cache_dtype);
    if (a.kind != AblationKind::kNone) evaluator.set_overrides(a.overrides);
    for (const auto& s : sequences) {
      evaluator.add(s);
      done += static_cast<std::int64_t>(s.size());
      if (progress) progress(done);
    }
    out.push_back({a, evaluator.result()});
  }
  return out;
}

std::vector<Plot> ablation_plots(const std::vector<AblationSeries>& series) {
  const auto plot = [&](AblationKind kind, std::string title, std::string x) {
    Plot p{std::move(title), std::move(x), "loss (nats per token)", {}};
    for (const AblationSeries& s : series) {
      PlotLine line{s.label, {}};
      for (const AblationResult& r : s.results) {
        const bool baseline = r.ablation.kind == AblationKind::kNone;
        if (!baseline && r.ablation.kind != kind) continue;
        const double x_value =
            baseline && kind == AblationKind::kTopK ? static_cast<double>(s.experts_per_token) : r.ablation.value;
        line.points.push_back({x_value, r.loss.mean()});
      }
      std::sort(line.points.begin(), line.points.end(), [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
      if (line.points.size() > 1) p.lines.push_back(std::move(line));
    }
    return p;
  };
  std::vector<Plot> out;
  for (Plot p : {plot(AblationKind::kMaskTop, "Each token's best experts masked", "share of the routed experts masked"),
                 plot(AblationKind::kTopK, "More or fewer experts per token", "routed experts per token")})
    if (!p.lines.empty()) out.push_back(std::move(p));
  return out;
}

}  // namespace dsmoe::study
