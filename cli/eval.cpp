// dsmoe eval: loss and perplexity of a text, as the model is and with its routing changed; and the logits if asked for.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/ablations.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "core/fail.h"
#include "infer/evaluate.h"
#include "io/safetensors_writer.h"
#include "io/text_data.h"
#include "study/labelled_data.h"

namespace dsmoe::cli {

namespace {

struct Options {
  ModelOptions model;
  AblationOptions ablations;
  std::string data, logits, field = "text";
  Index limit = 0, score_from = 0;
  bool json = false;
};

// Sequences of token ids. Lines of an .ids file as they are; a text file or the fields of a .jsonl file tokenized,
// cut into windows of the context's length that do not overlap, each beginning with the bos token if the tokenizer
// wants one.
std::vector<std::vector<std::int32_t>> read_sequences(const Options& o, const ModelConfig& config, Index context) {
  const std::string extension = std::filesystem::path(o.data).extension();
  std::vector<std::vector<std::int32_t>> sequences;
  if (extension == ".ids") {
    io::IdsReader reader(o.data, config.vocab_size);
    for (std::vector<std::int32_t> ids; reader.next(ids);) sequences.push_back(ids);
    return sequences;
  }
  const Tokenizer tokenizer = o.model.tokenizer();
  if (o.data == "builtin") {
    study::LabelledData data({study::DataSource::parse(o.data)}, tokenizer, {.vocab_size = config.vocab_size, .context = context});
    for (study::LabelledSequence s; data.next(s);) sequences.push_back(std::move(s.ids));
    return sequences;
  }
  const std::vector<std::int32_t> start = tokenizer.encode("");
  const auto add = [&](const std::string& text) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text, {.add_bos = false, .add_eos = false, .parse_special = false});
    const std::size_t room = static_cast<std::size_t>(context) - start.size();
    for (std::size_t i = 0; i < ids.size(); i += room) {
      std::vector<std::int32_t> window = start;
      window.insert(window.end(), ids.begin() + static_cast<std::ptrdiff_t>(i),
                    ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), i + room)));
      if (window.size() > 1) sequences.push_back(std::move(window));
    }
  };
  if (extension == ".jsonl") {
    io::JsonlReader reader(o.data, o.field);
    for (std::string text; reader.next(text);) add(text);
  } else {
    add(read_text(o.data));
  }
  return sequences;
}

void run(const Options& o) {
  const Transformer model = o.model.load();
  const ModelConfig& config = model.config();
  const Index context = o.model.context > 0 ? o.model.context : config.max_position_embeddings;
  require(context >= 2, "a context of {} tokens predicts nothing; use at least 2", context);
  std::vector<std::vector<std::int32_t>> sequences = read_sequences(o, config, context);
  if (o.limit > 0 && static_cast<Index>(sequences.size()) > o.limit) sequences.resize(static_cast<std::size_t>(o.limit));
  if (sequences.empty()) fail(ErrorCode::kInvalidArgument, "{} has no tokens to evaluate", o.data);

  if (o.ablations.wanted()) {
    if (!o.logits.empty() || o.score_from > 0)
      throw UsageError("--logits and --score-from are for the model as it is; leave the changes of routing out");
    return run_ablations(o.ablations, o.model, model, sequences, o.json);
  }
  std::optional<io::SafetensorsWriter> writer;
  if (!o.logits.empty()) {
    const std::size_t length = sequences.front().size();
    for (std::size_t i = 0; i < sequences.size(); ++i)
      require(sequences[i].size() == length, "--logits needs sequences of one length; sequence {} has {} tokens, the first has {}",
              i + 1, sequences[i].size(), length);
    writer.emplace(o.logits, std::vector<io::TensorSpec>{{"logits", DType::kF32,
                                                          {static_cast<Index>(sequences.size()), static_cast<Index>(length), config.vocab_size}}});
  }
  Context ctx(o.model.threads);
  Evaluator evaluator(ctx, model, parse_dtype(o.model.cache_dtype).value_or(model.dtype()));
  evaluator.set_first(o.score_from);
  std::int64_t tokens = 0;
  for (const auto& s : sequences) tokens += static_cast<std::int64_t>(s.size());
  {
    Progress progress("eval", tokens, "tokens");
    std::int64_t done = 0;
    for (const auto& s : sequences) {
      LogitSink sink;
      if (writer)
        sink = [&](const Tensor& logits) {
          writer->append("logits", {static_cast<const std::byte*>(logits.raw()), logits.bytes()});
        };
      evaluator.add(s, sink);
      progress.update(done += static_cast<std::int64_t>(s.size()), fmt::format("loss {:.4f}", evaluator.result().mean()));
    }
    progress.finish();
  }
  if (writer) writer->finish();
  const Evaluation& e = evaluator.result();
  if (o.json) {
    print_json({{"loss", e.mean()},
                {"perplexity", e.perplexity()},
                {"predicted_tokens", e.predicted},
                {"sequences", e.sequences},
                {"tokens", tokens}});
  } else {
    print(fmt::format("loss {:.6f}, perplexity {:.4f} over {} predicted tokens in {} sequence{}\n", e.mean(), e.perplexity(),
                      thousands(e.predicted), thousands(e.sequences), e.sequences == 1 ? "" : "s"));
  }
}

}  // namespace

void add_eval(CLI::App& program) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = add_command(program, "eval", "Loss and perplexity of a text");
  o.model.add(*command);
  o.model.add_context(*command);
  command->add_option("--data", o.data, "A text file, a .jsonl file, an .ids file (one sequence of token ids per line), or builtin")->required();
  command->add_option("--field", o.field, "The field of a .jsonl file that holds the text")->capture_default_str();
  command->add_option("--limit", o.limit, "Use only the first so many sequences; 0: all")->check(CLI::NonNegativeNumber);
  command->add_option("--score-from", o.score_from, "Count only tokens at this place of a sequence (from 0) and later; those before are context")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--logits", o.logits, "Write the logits [sequences, length, vocabulary] f32 to this safetensors file");
  command->add_flag("--json", o.json, "Print the result as JSON");
  o.ablations.add(*command);
  command->footer("Examples:\n  dsmoe eval -m MODEL --data book.txt -c 2048\n"
                  "  dsmoe eval -m MODEL --data book.txt --mask-top 1/16,2/16,3/16,4/16 --no-shared --plot masked.svg");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
