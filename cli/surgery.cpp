// dsmoe prune: a model without its least-used experts. dsmoe upcycle and merge: experts from dense models.
#include "study/surgery.h"

#include <fmt/format.h>

#include <memory>

#include "api/model_impl.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_options.h"
#include "cli/model_output.h"
#include "cli/option_flags.h"
#include "cli/output.h"
#include "cli/output_files.h"
#include "cli/progress.h"
#include "cli/ranges.h"
#include "cli/study_data.h"
#include "cli/table.h"
#include "core/fail.h"
#include "formats/model_source.h"
#include "io/sharded_writer.h"
#include "study/inspect.h"

namespace dsmoe::cli {

namespace {

struct PruneOptions {
  ModelFlags model;
  StudyDataOptions data, check;
  std::string out;
  Index keep = 0, remove = 0;
  bool force = false, json = false;
};

struct UpcycleCommand {
  std::vector<std::string> models;
  std::string out;
  std::optional<DType> dtype;  // none: as the first model is stored
  study::UpcycleOptions options;
  bool force = false, json = false;
};

void check_folder(const std::string& out, bool force) {
  if (is_gguf_name(out)) throw UsageError("-o takes a folder; dsmoe convert and dsmoe quantize make .gguf files of it");
  check_output(out, force);
}

// Writes the model with the tokenizer of the one it was made of.
void save(const study::Surgery& surgery, DType dtype, const std::string& from, const std::string& out) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(parameter_count(surgery.config)) * size_of(dtype);
  prepare_output(out, bytes, /*force=*/true);  // the caller has asked
  const std::unique_ptr<const ModelSource> source = ModelSource::open(from);
  with_progress("write", bytes, [&](const ByteProgress& progress) {
    save_model(out, surgery.config, dtype, surgery.tensor, io::kDefaultShardBytes, progress,
               {source->tokenizer(), source->generation()}, surgery.check);
  });
}

Evaluation loss(Context& ctx, const Transformer& model, study::LabelledData data, DType cache) {
  Evaluator evaluator(ctx, model, cache);
  for (study::LabelledSequence s; data.next(s);) evaluator.add(s.ids);
  return evaluator.result();
}

void run_prune(const PruneOptions& o) {
  if ((o.keep > 0) == (o.remove > 0)) throw UsageError("give either --keep or --remove");
  require_model(o.model.path);
  check_folder(o.out, o.force);
  ModelFlags on_cpu = o.model;
  on_cpu.load.device = Device::kCpu;  // the weights are read and written, too
  const std::shared_ptr<const Model> loaded = on_cpu.open();
  Context ctx(o.model.session.threads);
  Transformer& model = *loaded->impl().transformer;
  const ModelConfig config = model.config();
  require(config.moe_layers() > 0, "this model has no MoE layer, so there are no experts to remove");
  const Index keep = o.keep > 0 ? o.keep : config.routed_experts() - o.remove;
  require(keep >= config.experts_per_token() && keep <= config.routed_experts(),
          "{} experts per layer cannot be kept: the model has {}, and a token chooses {}", keep, config.routed_experts(),
          config.experts_per_token());
  static_cast<void>(study::pruned_config(config, keep));  // or an Error, before time is spent
  for (const auto& layer : model.weights().layers)
    require(!layer.experts.mixed(), "{} has quantized or f16 experts; read it with --dtype f32 or bf16", o.model.path);
  const std::optional<Tokenizer>& tokenizer = loaded->tokenizer();
  const DType cache = model.kv_dtype(o.model.session.kv_type);

  study::LabelledData data = o.data.open(config, tokenizer, o.model.session.context);
  Progress progress("prune", 0, "tokens");
  study::InspectOptions options{.cache_dtype = cache, .sample_tokens = 0};
  options.progress = [&](std::int64_t tokens, double l) { progress.update(tokens, fmt::format("loss {:.4f}", l)); };
  const study::Inspection found = study::inspect(ctx, model, data, options);
  progress.finish();

  const study::Surgery pruned =
      study::prune({config, model.weights()}, study::most_used(found.study, keep, config.expert_groups()));
  save(pruned, model.dtype(), o.model.path, o.out);
  std::int64_t lost = 0, all = 0;
  for (const study::LayerStudy& layer : found.study.layers()) {
    std::vector<std::int64_t> load = layer.statistics().load();
    std::sort(load.begin(), load.end());
    for (std::size_t e = 0; e < load.size(); ++e)
      all += load[e], lost += static_cast<Index>(e) < config.routed_experts() - keep ? load[e] : 0;
  }
  // On the data that chose the experts the loss is a little better than elsewhere; --check-data says how much.
  StudyDataOptions check = o.data;
  if (!o.check.data.empty()) check.data = o.check.data;
  const Transformer smaller = load_model(o.out, model.dtype());
  const Evaluation before =
      o.check.data.empty() ? found.loss() : loss(ctx, model, check.open(config, tokenizer, o.model.session.context), cache);
  const Evaluation after = loss(ctx, smaller, check.open(config, tokenizer, o.model.session.context), cache);
  const double share = all > 0 ? static_cast<double>(lost) / static_cast<double>(all) : 0;
  if (o.json) {
    print_json({{"folder", o.out},
                {"experts_before", config.routed_experts()},
                {"experts_after", keep},
                {"choices_lost", share},
                {"loss_before", before.mean()},
                {"loss_after", after.mean()},
                {"predicted_tokens", after.predicted}});
    return;
  }
  Table table({"", "experts per layer", "loss", "perplexity"});
  table.row({"before", std::to_string(config.routed_experts()), fmt::format("{:.4f}", before.mean()),
             fmt::format("{:.2f}", before.perplexity())});
  table.row(
      {"after", std::to_string(keep), fmt::format("{:.4f}", after.mean()), fmt::format("{:.2f}", after.perplexity())});
  print(table.str());
  print(fmt::format("\n{}: the removed experts had {:.1f}% of the choices; losses over {} tokens{}\n", o.out, 100 * share,
                    thousands(after.predicted), o.check.data.empty() ? " of the data that chose the experts" : ""));
}

void run_upcycle(const UpcycleCommand& o) {
  check_folder(o.out, o.force);
  std::vector<study::LoadedModel> models;
  DType dtype = DType::kF32;
  for (const std::string& folder : o.models) {
    require_model(folder);
    const std::unique_ptr<const ModelSource> source = ModelSource::open(folder);
    const ModelConfig& config = source->config();
    const DType stored = source->compute_dtype();
    if (models.empty()) dtype = o.dtype.value_or(stored);
    models.push_back({config, source->load_weights(config, stored, {})});
  }
  const study::Surgery made = study::upcycle(models, o.options);
  save(made, dtype, o.models.front(), o.out);
  const std::int64_t parameters = parameter_count(made.config);
  const ModelConfig& c = made.config;
  if (o.json) {
    print_json({{"folder", o.out},
                {"routed_experts", c.routed_experts()},
                {"experts_per_token", c.experts_per_token()},
                {"shared_experts", c.shared_experts()},
                {"expert_size", c.moe_intermediate_size},
                {"parameters", parameters}});
  } else {
    print(fmt::format("{}: {} routed experts of width {}, {} per token, {} shared; {} parameters{}\n", o.out,
                      c.routed_experts(), c.moe_intermediate_size, c.experts_per_token(), c.shared_experts(),
                      thousands(parameters), o.models.size() == 1 ? "; its output is that of the dense model" : ""));
  }
}

void add_upcycle_flags(CLI::App& command, UpcycleCommand& o) {
  command.add_option("-o,--out", o.out, "Output folder")->required();
  command.add_option("--granularity", o.options.slices, "Granularity (m): experts per dense layer")
      ->check(in_range(kPositive))
      ->capture_default_str();
  command.add_option("--shared", o.options.shared, "Shared experts among them")
      ->check(in_range(kNotNegative))
      ->capture_default_str();
  command.add_option("--active", o.options.active, "Copies of the dense layer activated per token")
      ->check(in_range(kPositive))
      ->capture_default_str();
  command.add_option("--keep-dense", o.options.keep_dense, "Number of first layers to keep dense")
      ->check(in_range(kNotNegative))
      ->capture_default_str();
  add_flag(command, OptionInfo{"seed", "Seed of the routers"}, o.options.seed);
  add_flag(command, {"dtype", "Output dtype (auto: as the model is stored)"}, o.dtype);
  add_force(command, o.force, kForceModel);
  command.add_flag("--json", o.json, "Print the result as JSON");
}

}  // namespace

void add_prune(CLI::App& program) {
  auto options = std::make_shared<PruneOptions>();
  PruneOptions& o = *options;
  CLI::App* command = add_command(program, "prune", "Remove the least-used experts of each layer");
  o.model.add(*command);
  o.model.add_threads(*command);
  o.model.add_context(*command);
  o.data.add(*command)->required();
  command->add_option("--check-data", o.check.data, "Measure the loss before and after on these files (default: --data)");
  command->add_option("-o,--out", o.out, "Output folder")->required();
  command->add_option("--keep", o.keep, "Experts to keep per layer")->check(in_range(kPositive));
  command->add_option("--remove", o.remove, "Experts to remove per layer")->check(in_range(kPositive));
  add_force(*command, o.force, kForceModel);
  command->add_flag("--json", o.json, "Print the result as JSON");
  command->footer("Example:\n  dsmoe prune -m MODEL --data book.txt --remove 8 -o smaller");
  command->callback([options] { run_prune(*options); });
}

void add_upcycle(CLI::App& program) {
  auto options = std::make_shared<UpcycleCommand>();
  UpcycleCommand& o = *options;
  CLI::App* command = add_command(program, "upcycle", "Convert a dense model to a fine-grained MoE with the same output");
  o.models.resize(1);
  command->add_option("-m,--model", o.models.front(), "Dense model: a Hugging Face folder")->required();
  command->add_option("--experts", o.options.copies, "Copies of each dense layer (N)")
      ->check(in_range(kPositive))
      ->capture_default_str();
  add_upcycle_flags(*command, o);
  command->footer("Example:\n  dsmoe upcycle -m DENSE --experts 8 --granularity 4 --shared 1 -o moe");
  command->callback([options] { run_upcycle(*options); });
}

void add_merge(CLI::App& program) {
  auto options = std::make_shared<UpcycleCommand>();
  UpcycleCommand& o = *options;
  CLI::App* command =
      add_command(program, "merge", "Merge dense models into one MoE: their MLPs become experts, the rest is averaged");
  command->add_option("-m,--model", o.models, "Dense models of the same shape: Hugging Face folders")
      ->required()
      ->expected(2, 4096);
  add_upcycle_flags(*command, o);
  command->footer("Example:\n  dsmoe merge -m prose code maths --granularity 2 -o moe");
  command->callback([options] {
    options->options.copies = static_cast<Index>(options->models.size());
    run_upcycle(*options);
  });
}

}  // namespace dsmoe::cli
