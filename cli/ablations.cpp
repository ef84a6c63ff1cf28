#include "cli/ablations.h"

#include <fmt/format.h>

#include "api/model_impl.h"
#include "cli/commands.h"
#include "cli/option_flags.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "io/atomic_file.h"

namespace dsmoe::cli {

void AblationFlags::add(CLI::App& command) {
  OptionMap flags = add_flags(command, request);
  for (const char* list : {"mask-top", "disable"}) flags[list]->delimiter(',');
  command.add_option("--plot", plot, "Plot the losses of --mask-top and --top-k to this SVG file");
}

void run_ablations(const AblationFlags& o, const Model& model, const EvaluateOptions& options,
                   const TokenSequences& sequences, const AblationOutput& output) {
  if (!o.plot.empty() && o.request.mask_top.empty() && o.request.top_k.empty())
    throw UsageError("--plot needs --mask-top or --top-k");
  const std::vector<study::Ablation> ablations = study::plan_ablations(o.request, model.config());
  std::int64_t tokens = 0;
  for (const auto& s : sequences) tokens += static_cast<std::int64_t>(s.size());
  Context ctx(options.threads, backend_for(model.device()));
  Progress progress("eval", tokens * static_cast<std::int64_t>(ablations.size()), "tokens", 0,
                    ProgressOutput::unless(output.quiet));
  const Transformer& transformer = *model.impl().transformer;
  const std::vector<study::AblationResult> results =
      study::run_ablations(ctx, transformer, transformer.kv_dtype(options.kv_type), sequences, ablations,
                           [&](std::int64_t done) { progress.update(done); });
  progress.finish();
  if (!o.plot.empty()) {
    const std::string name = model.path().lexically_normal().filename().string();
    io::write_file_atomically(
        o.plot, study::svg_document(study::ablation_plots({{name, results, model.config().experts_per_token()}})));
  }
  const double base = results.front().loss.mean();
  if (output.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const study::AblationResult& r : results) {
      nlohmann::ordered_json row = {{"ablation", study::to_string(r.ablation.kind)},
                                    {"label", r.ablation.label},
                                    {"loss", r.loss.mean()},
                                    {"perplexity", r.loss.perplexity()},
                                    {"change", r.loss.mean() - base}};
      if (r.ablation.kind == study::AblationKind::kMaskTop)
        row["masked_share"] = r.ablation.value, row["masked_experts"] = r.ablation.overrides.skip_best;
      if (r.ablation.kind == study::AblationKind::kTopK) row["experts_per_token"] = r.ablation.overrides.experts_per_token;
      rows.push_back(std::move(row));
    }
    print_json({{"predicted_tokens", results.front().loss.predicted},
                {"sequences", results.front().loss.sequences},
                {"ablations", rows}});
    return;
  }
  Table table({"routing", "loss", "change", "perplexity"});
  for (const study::AblationResult& r : results)
    table.row({r.ablation.label, fmt::format("{:.4f}", r.loss.mean()),
               r.ablation.kind == study::AblationKind::kNone ? "" : fmt::format("{:+.4f}", r.loss.mean() - base),
               fmt::format("{:.2f}", r.loss.perplexity())});
  print(table.str());
}

}  // namespace dsmoe::cli
