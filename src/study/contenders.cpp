// The models of a comparison, made from one config.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/fail.h"
#include "model/plan.h"
#include "study/compare.h"

namespace dsmoe::study {

namespace {

Contender counted(std::string key, std::string label, ModelConfig config, const ModelConfig& base, Index seq_len) {
  Contender c{std::move(key), std::move(label), std::move(config), {}, 0, 0, 0, 0};
  c.architecture = c.config.routed_experts() > 0 ? architecture_of(c.config) : Architecture{};
  for (const Parameter& p : parameter_list(c.config)) {
    const Index n = p.shape.numel();
    c.parameters += n;
    if (p.in(ParameterGroup::kRoutedExperts)) c.expert_parameters += n;
    if (p.in(ParameterGroup::kSharedExperts) ||
        (p.in(ParameterGroup::kDenseMlp) && c.config.routed_experts() == 0 && base.is_moe_layer(p.layer)))
      c.expert_parameters += n, c.active_expert_parameters += n;
  }
  if (c.config.routed_experts() > 0)
    c.active_expert_parameters +=
        (c.expert_parameters - c.active_expert_parameters) / c.config.routed_experts() * c.config.experts_per_token();
  c.flops = training_flops(c.config, seq_len);
  return c;
}

struct Also {
  Architecture architecture;  // no experts: dense
  double wide = 1;
};

// "1+3/31", "0+2/16x1.5", "densex8".
Also parse_also(const std::string& text) {
  static constexpr const char* kForm =
      "write SHARED+ACTIVE/ROUTED, as in 1+7/63, perhaps with xF for F times the width, or densexF";
  Also out;
  std::string rest = text;
  if (const std::size_t x = rest.find('x'); x != std::string::npos) {
    const char *begin = rest.data() + x + 1, *end = rest.data() + rest.size();
    const auto [stop, error] = std::from_chars(begin, end, out.wide);
    require(error == std::errc() && stop == end && out.wide > 0 && out.wide <= 1024, "also is '{}'; {}", text, kForm);
    rest.resize(x);
  }
  if (rest == "dense") return out;
  const char *at = rest.data(), *end = at + rest.size();
  const auto number = [&](Index& value, char after) {
    const auto [stop, error] = std::from_chars(at, end, value);
    const bool right = error == std::errc() && value >= 0 && (after == 0 ? stop == end : stop != end && *stop == after);
    require(right, "also is '{}'; {}", text, kForm);
    at = stop + (after == 0 ? 0 : 1);
  };
  number(out.architecture.shared, '+');
  number(out.architecture.active, '/');
  number(out.architecture.routed, 0);
  require(out.architecture.active >= 1 && out.architecture.active <= out.architecture.routed &&
              out.architecture.routed + out.architecture.shared <= Segmentation::kMaxExperts,
          "also is '{}': {} of {} experts cannot be chosen", text, out.architecture.active, out.architecture.routed);
  return out;
}

Contender further(const std::string& text, const ModelConfig& base, const ModelConfig& dense, Index seq_len) {
  Also also = parse_also(text);
  const auto widened = [&](Index width) {
    const double wide = static_cast<double>(width) * also.wide;
    require(wide == std::floor(wide), "also is '{}': {} times {} is no width", text, also.wide, width);
    return static_cast<Index>(wide);
  };
  std::string key = text;
  std::replace(key.begin(), key.end(), '/', '-');  // a folder's name
  if (also.architecture.routed == 0) {
    ModelConfig config = dense;
    config.intermediate_size = widened(dense.intermediate_size);
    return counted(key, fmt::format("dense, {} times as wide", also.wide), std::move(config), base, seq_len);
  }
  Architecture& a = also.architecture;
  const Architecture own = architecture_of(base);
  const Index all = (own.routed + own.shared) * own.width, experts = a.routed + a.shared;
  require(all % experts == 0, "also is '{}': the {} experts of width {} cannot be made into {} equal ones", text,
          own.routed + own.shared, own.width, experts);
  a.width = widened(all / experts);
  std::string label = fmt::format("{} + {} of {}", a.shared, a.active, a.routed);
  if (also.wide != 1) label += fmt::format(", {} times as wide", also.wide);
  return counted(key, label, with_architecture(base, a), base, seq_len);
}

}  // namespace

std::vector<Contender> contenders(const ModelConfig& base, Index split, Index seq_len,
                                  const std::vector<std::string>& also) {
  require(base.moe_layers() > 0, "the config has no MoE layer to compare");
  const Architecture own = architecture_of(base);
  const Segmentation s = Segmentation::of(own, split > 0 ? split : Segmentation::coarsest_split(own));
  ModelConfig dense = base;
  dense.n_routed_experts = dense.num_experts_per_tok = dense.n_shared_experts = {};
  dense.intermediate_size = (own.active + own.shared) * own.width;
  std::vector<Contender> out = {
      counted("a-conventional", fmt::format("(a) conventional top-{}", s.active), with_architecture(base, s.conventional()),
              base, seq_len),
      counted("b-fine-grained", "(b) fine-grained", with_architecture(base, s.fine_grained()), base, seq_len),
      counted("c-deepseekmoe", "(c) fine-grained + shared", with_architecture(base, s.deepseek_moe()), base, seq_len),
      counted("dense", "dense", dense, base, seq_len)};
  require(own.shared > 0 && s.split > 1,
          "the config has {} shared experts and is cut m = {}; (a), (b) and (c) would be the same", own.shared, s.split);
  for (const Contender& c : out) {
    require(c.architecture.routed == 0 || c.expert_parameters == out[0].expert_parameters,
            "{} has {} expert parameters, {} has {}", c.label, c.expert_parameters, out[0].label, out[0].expert_parameters);
    require(c.active_expert_parameters == out[0].active_expert_parameters,
            "{} runs {} expert parameters per token, {} runs {}", c.label, c.active_expert_parameters, out[0].label,
            out[0].active_expert_parameters);
  }
  for (const std::string& text : also) {
    out.push_back(further(text, base, dense, seq_len));
    for (std::size_t i = 0; i + 1 < out.size(); ++i)
      require(out[i].config.to_json() != out.back().config.to_json(), "also is '{}', which is {}", text, out[i].label);
  }
  return out;
}

}  // namespace dsmoe::study
