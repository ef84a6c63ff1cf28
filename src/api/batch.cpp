#include "dsmoe/batch.h"

#include <algorithm>

#include "api/model_impl.h"
#include "core/fail.h"
#include "infer/engine.h"
#include "infer/grammars.h"

namespace dsmoe {

namespace {

Finish finish_of(infer::End end) {
  switch (end) {
    case infer::End::kEos: return Finish::kEos;
    case infer::End::kStop:
    case infer::End::kCancelled: return Finish::kStopped;
    case infer::End::kContext: return Finish::kContext;
    case infer::End::kTimeout: return Finish::kTimeout;
    default: return Finish::kLength;
  }
}

EngineOptions sized(const Model& model, std::span<const std::vector<std::int32_t>> prompts, const GenerateOptions& options,
                    EngineOptions engine) {
  std::size_t longest = 0;
  for (const std::vector<std::int32_t>& p : prompts) longest = std::max(longest, p.size());
  const Index most = model.config().max_position_embeddings;
  if (engine.context == 0)
    engine.context = options.max_tokens < 0 ? most : std::min(most, static_cast<Index>(longest) + options.max_tokens + 1);
  engine.parallel = std::min(engine.parallel, static_cast<Index>(prompts.size()));
  engine.queue = static_cast<Index>(prompts.size());
  return engine;
}

std::shared_ptr<const grammar::CompiledGrammar> compiled(const Model& model, const GenerateOptions& options) {
  require(options.grammar.empty() || options.json_schema.empty(), "grammar and json-schema exclude each other; give one");
  const bool schema = !options.json_schema.empty();
  const std::string& text = schema ? options.json_schema : options.grammar;
  if (text.empty()) return {};
  require(model.tokenizer().has_value(), "a grammar needs a model with a tokenizer");
  using Kind = infer::GrammarSource::Kind;
  return infer::Grammars(*model.tokenizer(), model.config().vocab_size, options.end_tokens)
      .compiled({schema ? Kind::kJsonSchema : Kind::kGbnf, text, schema ? "json-schema" : "grammar"});
}

// Errors of callbacks are kept: the engine would take them for those of the request.
class BatchRun {
 public:
  BatchRun(infer::Engine& engine, std::size_t prompts, const OnBatchPiece& on_piece)
      : engine_(engine), on_piece_(on_piece), stopped_(prompts), results_(prompts) {}

  void submit(std::size_t i, infer::Request request) {
    request.on_token = [this, i](infer::Token token) { take(i, std::move(token)); };
    request.on_end = [this, i](infer::Ended ended) { end(i, std::move(ended)); };
    ids_.push_back(engine_.submit(std::move(request)).value());  // the queue has room for all of them
  }

  std::vector<Generated> run(const OnBatchStep& on_step) {
    while (engine_.step()) {
      if (thrown_) std::rethrow_exception(thrown_);
      if (on_step && !on_step())
        for (const infer::RequestId id : ids_) engine_.cancel(id);
    }
    if (thrown_) std::rethrow_exception(thrown_);
    return std::move(results_);
  }

 private:
  void take(std::size_t i, infer::Token token) {
    if (stopped_[i]) return;  // a token that was on its way
    if (token.id >= 0) results_[i].ids.push_back(token.id);
    results_[i].text += token.text;
    if (!on_piece_ || thrown_) return;
    try {
      if (on_piece_(i, {token.id, token.text})) return;
      stopped_[i] = true;
      engine_.cancel(ids_[i]);
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }
  void end(std::size_t i, infer::Ended ended) {
    if (ended.error && !thrown_) thrown_ = std::make_exception_ptr(*ended.error);
    results_[i].finish = finish_of(ended.reason);
    results_[i].prompt_tokens = ended.prompt_tokens - ended.cached_tokens;
    results_[i].seconds = ended.seconds;
  }

  infer::Engine& engine_;
  const OnBatchPiece& on_piece_;
  std::vector<infer::RequestId> ids_;
  std::vector<bool> stopped_;  // by the callback
  std::vector<Generated> results_;
  std::exception_ptr thrown_;
};

}  // namespace

std::vector<Generated> generate_batch(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
                                      const GenerateOptions& options, const EngineOptions& engine_options,
                                      const OnBatchPiece& on_piece, const OnBatchStep& on_step) {
  if (prompts.empty()) return {};
  options.validate();
  GenerateOptions all = options;
  for (const std::int32_t id : end_tokens(model)) all.end_tokens.push_back(id);
  const std::shared_ptr<const grammar::CompiledGrammar> grammar = compiled(model, all);
  Context ctx(engine_options.threads, backend_for(model.device()));
  infer::Engine engine(ctx, *model.impl().transformer, sized(model, prompts, all, engine_options), model.tokenizer());
  BatchRun batch(engine, prompts.size(), on_piece);
  for (std::size_t i = 0; i < prompts.size(); ++i)
    batch.submit(i, {.prompt = prompts[i],
                     .options = all,
                     .mask = grammar ? std::make_shared<infer::GrammarMask>(grammar) : nullptr,
                     .overrides = all.overrides});
  return batch.run(on_step);
}

}  // namespace dsmoe
