#include "study/report.h"

#include <cmath>

#include "core/fail.h"
#include "core/json_read.h"
#include "dsmoe/segmentation.h"
#include "io/text_data.h"
#include "study/report_assets.h"
#include "study/svg_plot.h"

namespace dsmoe::study {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kTopTokens = 24;

std::string piece(const std::optional<Tokenizer>& tokenizer, std::int32_t id) {
  return tokenizer && id < tokenizer->vocab_size() ? tokenizer->piece(id) : fmt::format("#{}", id);
}

// The names that statistics were kept for: beyond kMaxStudyDomains, all are the last.
std::vector<std::string> domain_names(const Inspection& in) {
  std::vector<std::string> names = in.domains;
  if (names.size() > in.study.domain_tokens().size()) {
    names.resize(in.study.domain_tokens().size());
    names.back() = "others";
  }
  return names;
}

double rounded(double value) { return std::round(value * 1e6) / 1e6; }

Json layer_json(const Inspection& in, std::size_t i, const std::optional<Tokenizer>& tokenizer) {
  const RoutingShape& shape = in.study.shape();
  const LayerStudy& layer = in.study.layers()[i];
  const RoutingStatistics& s = layer.statistics();
  const double even = std::log(static_cast<double>(shape.routed_experts));
  Json lifts = Json::array(), tokens = Json::array(), weights = Json::array();
  const std::vector<double> mean_weight = s.mean_weight();
  for (Index e = 0; e < shape.routed_experts; ++e) {
    weights.push_back(rounded(mean_weight[static_cast<std::size_t>(e)]));
    Json of_domains = Json::array(), of_tokens = Json::array();
    for (std::size_t d = 0; d < in.study.domain_tokens().size(); ++d)
      of_domains.push_back(rounded(layer.domain_lift(e, static_cast<Index>(d), in.study.domain_tokens())));
    for (const ExpertToken& t : layer.top_tokens(e, kTopTokens, in.study.token_counts()))
      of_tokens.push_back({{"id", t.id},
                           {"text", piece(tokenizer, t.id)},
                           {"count", t.count},
                           {"share", rounded(t.share)},
                           {"lift", rounded(t.lift)}});
    lifts.push_back(std::move(of_domains));
    tokens.push_back(std::move(of_tokens));
  }
  return {{"layer", shape.layers[i]},
          {"entropy", rounded(s.entropy())},
          {"evenness", even > 0 ? rounded(s.entropy() / even) : 1.0},
          {"imbalance", rounded(s.imbalance())},
          {"dead", s.unused()},
          {"overloaded", layer.overloaded()},
          {"combinations",
           {{"seen", std::round(layer.combinations().count())},
            {"exact", layer.combinations().exact()},
            {"possible", expert_combinations(shape.routed_experts, shape.experts_per_token)}}},
          {"domain_bits", rounded(layer.domain_information(in.study.domain_tokens()))},
          {"load", s.load()},
          {"weight", std::move(weights)},
          {"domain_lift", std::move(lifts)},
          {"tokens", std::move(tokens)},
          {"pairs", s.coactivation()}};
}

Json text_json(const Inspection& in, const std::optional<Tokenizer>& tokenizer) {
  Json out = Json::array();
  for (const TextSample& s : in.samples) {
    Json tokens = Json::array(), weights = Json::array();
    for (const std::int32_t id : s.ids) tokens.push_back(piece(tokenizer, id));
    for (const std::vector<float>& layer : s.weights) {
      Json thousandths = Json::array();
      for (const float w : layer) thousandths.push_back(std::lround(1000 * w));
      weights.push_back(std::move(thousandths));
    }
    out.push_back({{"domain", std::min(s.domain, kMaxStudyDomains - 1)},
                   {"tokens", tokens},
                   {"experts", s.experts},
                   {"weights", weights}});
  }
  return out;
}

Json stability_json(const Inspection& in, const std::string& name) {
  Json layers = Json::array();
  for (std::size_t i = 0; i < in.agreement->layers().size(); ++i) {
    const LayerAgreement& a = in.agreement->layers()[i];
    Index renamed = 0;
    const std::vector<Index> match = a.matching();
    for (std::size_t e = 0; e < match.size(); ++e) renamed += match[e] != static_cast<Index>(e);
    layers.push_back({{"layer", in.study.shape().layers[i]},
                      {"overlap", rounded(a.overlap())},
                      {"chance", rounded(a.chance_overlap())},
                      {"first", rounded(a.first_choice())},
                      {"matched", rounded(a.matched_overlap())},
                      {"renamed", renamed}});
  }
  return {{"model", name}, {"loss", in.other_loss().mean()}, {"layers", std::move(layers)}};
}

// A field of a CSV line, quoted where it must be (RFC 4180). A leading sign that a spreadsheet would take for a formula
// gets a quote before it.
std::string csv_field(const std::string& text) {
  const bool formula = !text.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos;
  const bool quoted = text.find_first_of(",\"\r\n") != std::string::npos;
  std::string out;
  if (quoted) out.push_back('"');
  if (formula) out.push_back('\'');
  for (const char c : text) out.append(c == '"' ? 2 : 1, c);
  if (quoted) out.push_back('"');
  return out;
}

void replace(std::string& text, std::string_view mark, std::string_view with) {
  const std::size_t at = text.find(mark);
  invariant(at != std::string::npos, "the report's page lacks a mark");
  text.replace(at, mark.size(), with);
}

// JSON for inside a <script>: no text in it can end the element or open a comment.
std::string script_json(const Json& data) {
  std::string out;
  for (const char c : data.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace)) {
    if (c == '<' || c == '>' || c == '&')
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      out += c;
  }
  return out;
}

}  // namespace

Json inspection_json(const Inspection& in, const ReportModel& model, const std::optional<Tokenizer>& tokenizer, bool text) {
  const RoutingShape& shape = in.study.shape();
  const std::vector<std::string> names = domain_names(in);
  Json domains = Json::array(), layers = Json::array();
  for (std::size_t d = 0; d < names.size(); ++d) {
    Json row = {{"name", names[d]}, {"tokens", in.study.domain_tokens()[d]}};
    const bool rest = d + 1 == names.size();  // the last may stand for many
    if (d < in.losses.size())
      row["loss"] = Inspection::sum({in.losses.begin() + static_cast<std::ptrdiff_t>(d),
                                     rest ? in.losses.end() : in.losses.begin() + static_cast<std::ptrdiff_t>(d) + 1})
                        .mean();
    domains.push_back(std::move(row));
  }
  bool exact = true;
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    layers.push_back(layer_json(in, i, tokenizer));
    exact &= in.study.layers()[i].token_counts_exact();
  }
  Json out = {{"format", "dsmoe-inspect-1"},
              {"version", model.version},
              {"model",
               {{"name", model.name},
                {"parameters", model.parameters},
                {"routed_experts", shape.routed_experts},
                {"experts_per_token", shape.experts_per_token},
                {"shared_experts", model.shared_experts},
                {"vocab_size", shape.vocab_size}}},
              {"data",
               {{"tokens", in.study.tokens()},
                {"sequences", in.study.sequences()},
                {"token_counts_exact", exact},
                {"domains", domains}}},
              {"layers", std::move(layers)}};
  if (!in.losses.empty()) out["data"]["loss"] = in.loss().mean();
  if (in.agreement) out["stability"] = stability_json(in, model.other_name);
  if (text) out["text"] = text_json(in, tokenizer);
  return out;
}

std::vector<std::vector<std::int64_t>> read_expert_loads(const std::string& path) {
  std::vector<std::vector<std::int64_t>> loads;
  const json_read::Json report = json_read::parse_object(io::read_text(path), path);
  for (const json_read::Json& layer : json_read::array(report, "layers", path))
    loads.push_back(json_read::get<std::vector<std::int64_t>>(layer, "load", path));
  if (loads.empty()) fail(ErrorCode::kFormat, "{}: there are no layers; it is no inspection of a model with experts", path);
  return loads;
}

std::string inspection_csv(const Inspection& in, const std::optional<Tokenizer>& tokenizer) {
  std::string out = "layer,expert,load,share,load_over_mean,mean_weight";
  const std::vector<std::string> names = domain_names(in);
  for (const std::string& name : names) out.append(",").append(csv_field("lift " + name));
  out += ",tokens_by_lift\n";
  const RoutingShape& shape = in.study.shape();
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    const LayerStudy& layer = in.study.layers()[i];
    const std::vector<double> weight = layer.statistics().mean_weight();
    const auto tokens = static_cast<double>(in.study.tokens());
    const double mean = tokens * static_cast<double>(shape.experts_per_token) / static_cast<double>(shape.routed_experts);
    for (Index e = 0; e < shape.routed_experts; ++e) {
      const auto load = static_cast<double>(layer.statistics().load()[static_cast<std::size_t>(e)]);
      out += fmt::format("{},{},{:.0f},{:.6f},{:.4f},{:.6f}", shape.layers[i], e, load, load / tokens, load / mean,
                         weight[static_cast<std::size_t>(e)]);
      for (std::size_t d = 0; d < names.size(); ++d)
        out += fmt::format(",{:.4f}", layer.domain_lift(e, static_cast<Index>(d), in.study.domain_tokens()));
      std::string top;
      for (const ExpertToken& t : layer.top_tokens(e, kTopTokens, in.study.token_counts()))
        top.append(top.empty() ? "" : " ").append(piece(tokenizer, t.id));
      out.append(",").append(csv_field(top)).append("\n");
    }
  }
  return out;
}

std::string html_report(ReportKind kind, const std::string& title, const Json& data) {
  std::string page(kPageHtml);
  // In this order no text from outside can be taken for a mark: our own files first, and the title's mark is the first of
  // all.
  replace(page, "@STYLE@", std::string(kStyleCss) + svg_style());
  replace(page, "@SCRIPT@", std::string(kBaseJs) + std::string(kind == ReportKind::kInspect ? kInspectJs : kCompareJs));
  replace(page, "@DATA@", script_json(data));
  replace(page, "@TITLE@", escape_markup(title));
  return page;
}

}  // namespace dsmoe::study
