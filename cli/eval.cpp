// dsmoe eval: loss and perplexity of a text, as the model is and with its routing changed; and the logits if asked for.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/ablations.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/output_files.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "core/fail.h"
#include "dsmoe/evaluate.h"
#include "io/safetensors_writer.h"

namespace dsmoe::cli {

namespace {

struct EvalFlags {
  ModelFlags model;
  EvaluateOptions evaluate;
  AblationFlags ablations;
  std::string logits;
  bool force = false, json = false, quiet = false;
};

// For --logits: one tensor of all sequences, which must be of one length.
io::SafetensorsWriter logits_writer(const std::string& path, const TokenSequences& sequences, Index vocab_size) {
  const std::size_t length = sequences.front().size();
  for (std::size_t i = 0; i < sequences.size(); ++i)
    require(sequences[i].size() == length,
            "--logits needs sequences of one length; sequence {} has {} tokens, the first has {}", i + 1,
            sequences[i].size(), length);
  const Shape shape = {static_cast<Index>(sequences.size()), static_cast<Index>(length), vocab_size};
  return {path, std::vector<io::TensorSpec>{{"logits", DType::kF32, shape}}};
}

void run(const EvalFlags& flags) {
  EvalFlags o = flags;
  check_output_files(std::vector{o.logits, o.ablations.plot}, o.force);
  o.model.load.spread_experts = join_ranks_with_same_arguments(o.evaluate.threads);
  if (o.model.load.spread_experts && o.ablations.wanted()) throw UsageError("ablations are for one process");
  const std::shared_ptr<const Model> model = o.model.open();
  const TokenSequences sequences = read_sequences(*model, o.evaluate);
  std::size_t longest = 0;
  for (const auto& s : sequences) longest = std::max(longest, s.size());
  note_long_context(model->config(), static_cast<Index>(longest));
  if (o.ablations.wanted()) {
    if (!o.logits.empty() || o.evaluate.score_from > 0)
      throw UsageError("--logits and --score-from cannot be combined with ablations");
    return run_ablations(o.ablations, *model, o.evaluate, sequences, {o.json, o.quiet});
  }
  std::optional<io::SafetensorsWriter> writer;
  if (!o.logits.empty() && is_first_rank()) writer.emplace(logits_writer(o.logits, sequences, model->config().vocab_size));
  std::int64_t tokens = 0;
  for (const auto& s : sequences) tokens += static_cast<std::int64_t>(s.size());
  Progress progress("eval", tokens, "tokens", 0, ProgressOutput::unless(o.quiet));
  EvaluateHooks hooks;
  hooks.progress = [&](Index done, const Evaluation& e) { progress.update(done, fmt::format("loss {:.4f}", e.mean())); };
  if (!o.logits.empty())
    hooks.logits = [&](const Tensor& logits) {
      if (writer) writer->append("logits", {static_cast<const std::byte*>(logits.raw()), logits.bytes()});
    };
  const Evaluation e = evaluate(*model, sequences, o.evaluate, hooks);
  progress.finish();
  if (writer) writer->finish();
  if (o.json) {
    print_json({{"loss", e.mean()},
                {"perplexity", e.perplexity()},
                {"predicted_tokens", e.predicted},
                {"sequences", e.sequences},
                {"tokens", tokens}});
  } else {
    print(fmt::format("loss {:.6f}, perplexity {:.4f} over {} predicted tokens in {} sequence{}\n", e.mean(),
                      e.perplexity(), thousands(e.predicted), thousands(e.sequences), e.sequences == 1 ? "" : "s"));
  }
}

}  // namespace

void add_eval(CLI::App& program) {
  auto options = std::make_shared<EvalFlags>();
  EvalFlags& o = *options;
  CLI::App* command = add_command(program, "eval", "Compute loss and perplexity of a text, and run ablations");
  o.model.add(*command);
  add_flags(*command, o.evaluate)["data"]->required();
  command->add_option("--logits", o.logits,
                      "Write the f32 logits [sequences, length, vocabulary] to this safetensors file");
  add_force(*command, o.force);
  command->add_flag("-q,--quiet", o.quiet, "Do not show the progress");
  command->add_flag("--json", o.json, "Print the result as JSON");
  o.ablations.add(*command);
  command->footer(
      "Examples:\n  dsmoe eval -m MODEL --data book.txt -c 2048\n"
      "  dsmoe eval -m MODEL --data book.txt --mask-top 1/16,2/16,3/16,4/16 --no-shared --plot masked.svg");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
