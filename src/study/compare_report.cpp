// A comparison for people and for programs.
#include <algorithm>
#include <map>

#include "core/fail.h"
#include "study/compare.h"

namespace dsmoe::study {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Statistic& s) { return {{"mean", s.mean}, {"sd", s.sd}}; }

// A line of means with the spread over seeds; runs have their points at the same places.
template <class Values>
PlotLine mean_line(const Comparison& c, std::size_t contender, Values values) {
  std::map<double, std::vector<double>> at;
  for (const Outcome& o : c.outcomes)
    if (o.contender == contender)
      for (const auto& [x, y] : values(o)) at[static_cast<double>(x)].push_back(y);
  PlotLine line{c.contenders[contender].label, {}};
  for (const auto& [x, ys] : at) {
    const Statistic s = Statistic::of(ys);
    line.points.push_back({x, s.mean, s.sd});
  }
  return line;
}

// The held-out loss minus that of the first contender with the same seed: the curves themselves lie too close together.
std::vector<std::pair<Index, double>> against_first(const Comparison& c, const Outcome& o) {
  std::vector<std::pair<Index, double>> out;
  for (const Outcome& first : c.outcomes) {
    if (first.contender != 0 || first.seed != o.seed) continue;
    for (std::size_t i = 0; i < std::min(o.curve.size(), first.curve.size()); ++i)
      if (o.curve[i].first == first.curve[i].first)
        out.emplace_back(o.curve[i].first, o.curve[i].second - first.curve[i].second);
  }
  return out;
}

double base_loss(const Outcome& o) { return o.ablations.empty() ? 0 : o.ablations.front().loss.mean(); }

// What the first mask costs.
double mask_cost(const Outcome& o) {
  for (const AblationResult& a : o.ablations)
    if (a.ablation.kind == AblationKind::kMaskTop) return a.loss.mean() - base_loss(o);
  return 0;
}

template <class Value>
Statistic over_seeds(const Comparison& c, std::size_t contender, Value value) {
  std::vector<double> values;
  for (const Outcome& o : c.outcomes)
    if (o.contender == contender) values.push_back(value(o));
  return Statistic::of(values);
}

Json model_json(const Comparison& c, std::size_t i) {
  const Contender& m = c.contenders[i];
  return {
      {"label", m.label},
      {"routed", m.architecture.routed},
      {"active", m.architecture.active},
      {"shared", m.architecture.shared},
      {"width", m.architecture.routed > 0 ? m.architecture.width : m.config.intermediate_size},
      {"combinations", m.architecture.routed > 0 ? expert_combinations(m.architecture.routed, m.architecture.active) : "1"},
      {"parameters", m.parameters},
      {"expert_parameters", m.expert_parameters},
      {"active_expert_parameters", m.active_expert_parameters},
      {"flops", m.flops},
      {"seeds", c.options.seeds},
      {"loss", to_json(Statistic::of(c.losses(i)))},
      {"losses", c.losses(i)},
      {"mask_cost", over_seeds(c, i, mask_cost).mean},
      {"evenness", over_seeds(c, i, [](const Outcome& o) { return o.evenness; }).mean},
      {"domain_bits", over_seeds(c, i, [](const Outcome& o) { return o.domain_bits; }).mean},
      {"sets_seen", over_seeds(c, i, [](const Outcome& o) { return o.sets_seen; }).mean}};
}

Json ablations_json(const Comparison& c) {
  Json out = Json::array();
  for (std::size_t i = 0; i < c.contenders.size(); ++i) {
    const auto first =
        std::find_if(c.outcomes.begin(), c.outcomes.end(), [i](const Outcome& o) { return o.contender == i; });
    for (std::size_t a = 0; first != c.outcomes.end() && a < first->ablations.size(); ++a) {
      const Statistic loss = over_seeds(c, i, [a](const Outcome& o) { return o.ablations.at(a).loss.mean(); });
      const Statistic cost =
          over_seeds(c, i, [a](const Outcome& o) { return o.ablations.at(a).loss.mean() - base_loss(o); });
      out.push_back({{"model", c.contenders[i].label},
                     {"ablation", to_string(first->ablations[a].ablation.kind)},
                     {"label", first->ablations[a].ablation.label},
                     {"value", first->ablations[a].ablation.value},
                     {"loss", to_json(loss)},
                     {"change", cost.mean},
                     {"change_sd", cost.sd}});
    }
  }
  return out;
}

Json domains_json(const Comparison& c) {
  Json out = Json::array();
  if (c.outcomes.empty()) return out;
  for (const auto& [name, unused] : c.outcomes.front().domains) {
    Json losses = Json::array();
    for (std::size_t i = 0; i < c.contenders.size(); ++i)
      losses.push_back(to_json(over_seeds(c, i, [&n = name](const Outcome& o) {
        for (const auto& [domain, loss] : o.domains)
          if (domain == n) return loss;
        return 0.0;
      })));
    out.push_back({{"name", name}, {"losses", std::move(losses)}});
  }
  return out;
}

}  // namespace

std::vector<Plot> curve_plots(const Comparison& c) {
  Plot held_out{"Held-out loss", "tokens", "loss (nats per token)", {}},
      training{"Training loss", "tokens", "loss (nats per token)", {}},
      difference{"Held-out loss against " + c.contenders.front().label + ", seed by seed",
                 "tokens",
                 "difference (nats per token)",
                 {}};
  for (std::size_t i = 0; i < c.contenders.size(); ++i) {
    held_out.lines.push_back(mean_line(c, i, [](const Outcome& o) { return o.curve; }));
    training.lines.push_back(mean_line(c, i, [](const Outcome& o) { return o.train_curve; }));
    training.lines.back().markers = false;
    difference.lines.push_back(mean_line(c, i, [&](const Outcome& o) { return against_first(c, o); }));
  }
  return {held_out, difference, training};
}

std::vector<Plot> comparison_ablation_plots(const Comparison& c) {
  Plot masked{"Each token's best experts masked", "share of the routed experts masked", "loss (nats per token)", {}};
  Plot fewer{"Fewer experts per token", "share of the model's own number", "loss (nats per token)", {}};
  for (std::size_t i = 0; i < c.contenders.size(); ++i) {
    const auto active = static_cast<double>(c.contenders[i].architecture.active);
    if (active == 0) continue;
    const auto points = [&](AblationKind kind, double scale, double own) {
      return [=](const Outcome& o) {
        std::vector<std::pair<double, double>> out;
        for (const AblationResult& a : o.ablations)
          if (a.ablation.kind == AblationKind::kNone)
            out.emplace_back(own, a.loss.mean());
          else if (a.ablation.kind == kind)
            out.emplace_back(a.ablation.value * scale, a.loss.mean());
        return out;
      };
    };
    masked.lines.push_back(mean_line(c, i, points(AblationKind::kMaskTop, 1, 0)));
    fewer.lines.push_back(mean_line(c, i, points(AblationKind::kTopK, 1 / active, 1)));
  }
  return {masked, fewer};
}

Json comparison_json(const Comparison& c, const Json& about) {
  Json models = Json::array(), verdicts = Json::array(), curves = Json::array(), ablations = Json::array();
  for (std::size_t i = 0; i < c.contenders.size(); ++i) models.push_back(model_json(c, i));
  for (const Verdict& v : c.verdicts()) verdicts.push_back({{"sure", v.sure}, {"text", v.text}});
  for (const Plot& p : curve_plots(c)) curves.push_back(svg_element(p));
  for (const Plot& p : comparison_ablation_plots(c)) ablations.push_back(svg_element(p));
  Json out = {{"format", "dsmoe-compare-1"},
              {"seeds", c.options.seeds},
              {"steps", c.options.train.steps},
              {"tokens", c.tokens},
              {"equal_note",
               "The first three have exactly as many expert parameters, in all and per token, counted from their tensors; "
               "all parameters "
               "differ by the routers. The dense model has as many as the others run per token."},
              {"models", std::move(models)},
              {"verdicts", std::move(verdicts)},
              {"domains", domains_json(c)},
              {"ablations", ablations_json(c)},
              {"plots", {{"curves", std::move(curves)}, {"ablations", std::move(ablations)}}}};
  for (const auto& [key, value] : about.items()) out[key] = value;
  return out;
}

}  // namespace dsmoe::study
