#include "dsmoe/evaluate.h"

#include <algorithm>
#include <filesystem>

#include "api/model_impl.h"
#include "core/options.h"
#include "infer/evaluate.h"
#include "io/text_data.h"
#include "parallel/mesh.h"
#include "parallel/same.h"
#include "study/labelled_data.h"
#include "train/hash.h"

namespace dsmoe {

void EvaluateOptions::validate() const { validate_options(*this); }

namespace {

// Windows of `context` tokens that do not overlap, each beginning with what the tokenizer begins every text with. Only the
// text is predicted: no window has the eos that some tokenizers put behind a text.
class Windows {
 public:
  Windows(const Tokenizer& tokenizer, Index context, bool parse_special)
      : tokenizer_(tokenizer), start_(tokenizer.encode("", {.add_eos = false})), parse_special_(parse_special) {
    require(context > static_cast<Index>(start_.size()),
            "context is {}, but the tokenizer begins every text with {} tokens; use a larger context", context,
            start_.size());
    room_ = static_cast<std::size_t>(context) - start_.size();
  }

  void add(const std::string& text, TokenSequences& to) const {
    const std::vector<std::int32_t> ids =
        tokenizer_.encode(text, {.add_bos = false, .add_eos = false, .parse_special = parse_special_});
    for (std::size_t i = 0; i < ids.size(); i += room_) {
      std::vector<std::int32_t> window = start_;
      window.insert(window.end(), ids.begin() + static_cast<std::ptrdiff_t>(i),
                    ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), i + room_)));
      if (window.size() > 1) to.push_back(std::move(window));
    }
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> start_;
  bool parse_special_;
  std::size_t room_ = 0;
};

TokenSequences read_all(const Model& model, const EvaluateOptions& o, Index context) {
  const Index vocab_size = model.config().vocab_size;
  const std::string extension = std::filesystem::path(o.data).extension();
  TokenSequences sequences;
  if (extension == ".ids") {
    io::IdsReader reader(o.data, vocab_size);
    for (std::vector<std::int32_t> ids; reader.next(ids);) sequences.push_back(ids);
    return sequences;
  }
  if (!model.tokenizer())
    fail(ErrorCode::kInvalidArgument, "{} has no tokenizer; {}", model.path().string(),
         std::filesystem::is_directory(model.path()) ? "put the tokenizer.json that it was trained with into it"
                                                     : "convert it again, from a folder that has tokenizer.json");
  const Tokenizer& tokenizer = *model.tokenizer();
  if (o.data == "builtin") {
    study::LabelledData data({study::DataSource::parse(o.data)}, tokenizer, {.vocab_size = vocab_size, .context = context});
    for (study::LabelledSequence s; data.next(s);) sequences.push_back(std::move(s.ids));
    return sequences;
  }
  const Windows windows(tokenizer, context, o.parse_special);
  if (extension == ".jsonl") {
    io::JsonlReader reader(o.data, o.field);
    for (std::string text; reader.next(text);) windows.add(text, sequences);
  } else {
    const std::string text = io::read_text(o.data);
    if (const std::size_t at = text.find('\0'); at != std::string::npos)
      fail(ErrorCode::kFormat, "{}: not a text file (byte {} is zero); give text, .jsonl or .ids", o.data, at + 1);
    windows.add(text, sequences);
  }
  return sequences;
}

}  // namespace

TokenSequences read_sequences(const Model& model, const EvaluateOptions& o) {
  o.validate();
  const Index context = o.context > 0 ? o.context : model.config().max_position_embeddings;
  require(context >= 2, "context is {}; it must be at least 2 to predict anything", context);
  TokenSequences sequences = read_all(model, o, context);
  if (o.limit > 0 && static_cast<Index>(sequences.size()) > o.limit) sequences.resize(static_cast<std::size_t>(o.limit));
  if (sequences.empty()) fail(ErrorCode::kInvalidArgument, "{} has no tokens to evaluate", o.data);
  return sequences;
}

Evaluation evaluate(const Model& model, std::span<const std::vector<std::int32_t>> sequences, const EvaluateOptions& o,
                    const EvaluateHooks& hooks) {
  o.validate();
  Index longest = 0;
  for (const std::vector<std::int32_t>& s : sequences) longest = std::max(longest, static_cast<Index>(s.size()));
  // The mean over none would be a loss of 0.
  if (!hooks.logits && longest <= std::max<Index>(o.score_from, 1))
    fail(ErrorCode::kInvalidArgument, "no token is scored: the longest sequence has {} tokens, and score-from is {}",
         longest, o.score_from);
  if (const auto& mesh = model.impl().mesh) {
    train::Hash hash;
    for (const std::vector<std::int32_t>& s : sequences) hash.add(std::as_bytes(std::span(s)));
    parallel::require_same(*mesh->world, {{"data with the fingerprint", hash.hex()}}, parallel::kSameFiles);
  }
  Context ctx(o.threads, backend_for(model.device()));
  const Transformer& transformer = *model.impl().transformer;
  Evaluator evaluator(ctx, transformer, transformer.kv_dtype(o.kv_type));
  evaluator.set_first(o.score_from);
  if (hooks.routing) evaluator.set_probe(hooks.routing);
  if (o.overrides) evaluator.set_overrides(*o.overrides);
  Index tokens = 0;
  for (const std::vector<std::int32_t>& s : sequences) {
    evaluator.add(s, hooks.logits);
    tokens += static_cast<Index>(s.size());
    if (hooks.progress) hooks.progress(tokens, evaluator.result());
  }
  return evaluator.result();
}

}  // namespace dsmoe
