// dsmoe inspect: where a model's tokens go, as a report for people, JSON, CSV, or a trace.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>

#include "api/model_impl.h"
#include "cli/build_info.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/output_files.h"
#include "cli/progress.h"
#include "cli/ranges.h"
#include "cli/study_data.h"
#include "cli/table.h"
#include "core/fail.h"
#include "dsmoe/segmentation.h"
#include "io/atomic_file.h"
#include "study/report.h"

namespace dsmoe::cli {

namespace {

struct InspectFlags {
  ModelFlags model;
  StudyDataOptions data;
  std::string out, csv, trace, replay, against;
  Index sample = 2000;
  bool force = false, json = false;
};

// A step under way: the data's length is not known beforehand.
study::InspectOptions inspect_options(const InspectFlags& o, Progress& progress) {
  study::InspectOptions options;
  options.sample_tokens = o.sample;
  options.progress = [&progress](std::int64_t tokens, double loss) {
    progress.update(tokens, loss > 0 ? fmt::format("loss {:.4f}", loss) : "");
  };
  return options;
}

study::Inspection look(const InspectFlags& o, study::ReportModel& about) {
  Progress progress("inspect", 0, "tokens");
  study::InspectOptions options = inspect_options(o, progress);
  about.version = kVersion;
  if (!o.replay.empty()) {
    Context ctx(o.model.session.threads);
    study::TraceReader trace(o.replay);
    about.name = std::filesystem::path(o.replay).filename().string();
    study::Inspection found = study::inspect(ctx, trace, options);
    progress.finish();
    return found;
  }
  const std::shared_ptr<const Model> loaded = o.model.open();
  const Transformer& model = *loaded->impl().transformer;
  Context ctx(o.model.session.threads, backend_for(loaded->device()));
  about.name = folder_name(o.model.path);
  about.shared_experts = model.config().shared_experts();
  for (const Parameter& p : parameter_list(model.config())) about.parameters += p.shape.numel();
  study::LabelledData data = o.data.open(model.config(), loaded->tokenizer(), o.model.session.context);
  options.cache_dtype = model.kv_dtype(o.model.session.kv_type);

  std::shared_ptr<const Model> other;
  if (!o.against.empty()) {
    ModelFlags second = o.model;
    second.path = o.against;
    second.load.device = loaded->device();
    other = second.open();
    options.other = other->impl().transformer.get();
    about.other_name = folder_name(o.against);
    if (about.other_name == about.name) about.other_name = o.against;
  }
  std::optional<study::TraceWriter> trace;
  if (!o.trace.empty()) options.trace = &trace.emplace(o.trace, study::RoutingShape::of(model.config()));
  study::Inspection found = study::inspect(ctx, model, data, options);
  if (trace) trace->finish();
  progress.finish();
  return found;
}

void print_summary(const study::Inspection& found) {
  const study::RoutingShape& shape = found.study.shape();
  print(fmt::format("{} tokens in {} sequences{}\n\n", thousands(found.study.tokens()), thousands(found.study.sequences()),
                    found.losses.empty() ? "" : fmt::format(", loss {:.4f}", found.loss().mean())));
  std::vector<std::string> head = {"layer", "evenness", "imbalance", "dead", "overloaded", "sets seen"};
  const bool domains = found.study.domain_tokens().size() > 1;
  if (domains) head.emplace_back("domain bits");
  if (found.agreement) head.insert(head.end(), {"shared choices", "by chance", "after renaming"});
  Table table(head);
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    const study::LayerStudy& layer = found.study.layers()[i];
    const double even = std::log(static_cast<double>(shape.routed_experts));
    std::vector<std::string> row = {
        std::to_string(shape.layers[i]),
        fmt::format("{:.1f}%", even > 0 ? 100 * layer.statistics().entropy() / even : 100.0),
        fmt::format("{:.2f}", layer.statistics().imbalance()),
        std::to_string(layer.statistics().unused().size()),
        std::to_string(layer.overloaded().size()),
        (layer.combinations().exact() ? "" : "~") + thousands(std::llround(layer.combinations().count()))};
    if (domains) row.push_back(fmt::format("{:.4f}", layer.domain_information(found.study.domain_tokens())));
    if (found.agreement) {
      const study::LayerAgreement& a = found.agreement->layers()[i];
      for (const double share : {a.overlap(), a.chance_overlap(), a.matched_overlap()})
        row.push_back(fmt::format("{:.1f}%", 100 * share));
    }
    table.row(std::move(row));
  }
  print(table.str());
  print(fmt::format("\nA token chooses {} of {} experts: {} sets exist.\n", shape.experts_per_token, shape.routed_experts,
                    thousands(expert_combinations(shape.routed_experts, shape.experts_per_token))));
}

void run(const InspectFlags& o) {
  if (o.replay.empty() && (o.model.path.empty() || o.data.data.empty()))
    throw UsageError("give a model (-m) and --data, or a trace (--replay)");
  if (!o.replay.empty() && !(o.data.data.empty() && o.against.empty() && o.trace.empty()))
    throw UsageError("--replay reads a trace instead of running a model; leave --data, --against and --trace out");
  check_output_files(std::vector{o.out, o.csv, o.trace}, o.force);
  study::ReportModel about;
  const study::Inspection found = look(o, about);
  const std::optional<Tokenizer> tokenizer = o.model.path.empty() ? std::nullopt : Model::load_tokenizer(o.model.path);
  if (!o.csv.empty()) io::write_file_atomically(o.csv, study::inspection_csv(found, tokenizer));
  if (!o.out.empty())
    io::write_file_atomically(o.out, study::html_report(study::ReportKind::kInspect, "Routing of " + about.name,
                                                        study::inspection_json(found, about, tokenizer, /*text=*/true)));
  if (o.json) {
    print_json(study::inspection_json(found, about, tokenizer, /*text=*/false));
  } else {
    print_summary(found);
    if (!o.out.empty()) print(fmt::format("The report is {}: open it in a browser.\n", o.out));
  }
}

}  // namespace

void add_inspect(CLI::App& program) {
  auto options = std::make_shared<InspectFlags>();
  InspectFlags& o = *options;
  CLI::App* command =
      add_command(program, "inspect", "Report which experts a model uses: load, domains, tokens, combinations");
  o.model.add(*command)->required(false);
  o.model.add_threads(*command);
  o.model.add_context(*command);
  o.data.add(*command);
  command->add_option("-o,--out", o.out, "Write the report to this HTML file");
  command->add_option("--csv", o.csv, "Write a CSV file with one row per layer and expert");
  command->add_option("--trace", o.trace, "Record the experts of every token in this file, for --replay");
  command->add_option("--replay", o.replay,
                      "Read a trace instead of running the model (-m then only provides the tokenizer)");
  command->add_option("--against", o.against, "Compare the routing with another model or checkpoint on the same tokens");
  command->add_option("--sample", o.sample, "Tokens of sample text in the report")
      ->check(in_range(kNotNegative))
      ->capture_default_str();
  add_force(*command, o.force);
  command->add_flag("--json", o.json, "Print all results as JSON");
  command->footer("Example:\n  dsmoe inspect -m MODEL --data prose=book.txt code=main.c -o report.html");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
