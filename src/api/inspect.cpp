#include "dsmoe/inspect.h"

#include <filesystem>

#include "api/model_impl.h"
#include "core/fail.h"
#include "study/report.h"

namespace dsmoe {

namespace {

std::string name_of(const Model& model, const std::string& wanted) {
  if (!wanted.empty()) return wanted;
  if (model.path().empty()) return "model";
  const std::filesystem::path path = std::filesystem::absolute(model.path()).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace

InspectReport inspect(const Model& model, const InspectOptions& o) {
  require(!o.data.empty(), "data is empty; name files, or builtin");
  const Transformer& transformer = *model.impl().transformer;
  const ModelConfig& config = model.config();
  require(config.moe_layers() > 0, "the model has no MoE layer, so there are no experts to look at");
  std::vector<study::DataSource> sources;
  for (const std::string& argument : o.data) sources.push_back(study::DataSource::parse(argument));
  study::LabelledData data(std::move(sources), model.tokenizer(),
                           {.vocab_size = config.vocab_size,
                            .context = o.context > 0 ? o.context : config.max_position_embeddings,
                            .field = o.field,
                            .tokens_per_domain = o.limit});
  study::ReportModel about{.name = name_of(model, o.name), .shared_experts = config.shared_experts()};
  for (const Parameter& p : parameter_list(config)) about.parameters += p.shape.numel();
  study::InspectOptions options{.cache_dtype = transformer.kv_dtype(o.kv_type), .sample_tokens = o.sample};
  if (o.against != nullptr) {
    require(o.against->device() == model.device(), "the two models are on different devices");
    options.other = o.against->impl().transformer.get();
    about.other_name = name_of(*o.against, o.against_name);
  }
  options.progress = o.progress;
  Context ctx(o.threads, backend_for(model.device()));
  const study::Inspection found = study::inspect(ctx, transformer, data, options);
  return {.json = study::inspection_json(found, about, model.tokenizer(), /*text=*/false).dump(),
          .csv = study::inspection_csv(found, model.tokenizer()),
          .html = study::html_report(study::ReportKind::kInspect, "Routing of " + about.name,
                                     study::inspection_json(found, about, model.tokenizer(), /*text=*/true))};
}

}  // namespace dsmoe
