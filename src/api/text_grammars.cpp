#include "api/text_grammars.h"

#include "core/fail.h"

namespace dsmoe {

const Tokenizer& tokenizer_of(const Model& model) {
  const std::optional<Tokenizer>& found = model.tokenizer();
  if (!found)
    fail(ErrorCode::kInvalidArgument, "{} has no tokenizer; give the prompt as token ids",
         model.path().empty() ? "the model" : model.path().string());
  return *found;
}

std::vector<std::int32_t> end_tokens(const Model& model) {
  std::vector<std::int32_t> out;
  const std::vector<Index>& wanted = model.generation().eos_token_id;
  for (const Index id : wanted.empty() ? model.config().eos_token_id : wanted)
    if (id >= 0 && id < model.config().vocab_size) out.push_back(static_cast<std::int32_t>(id));
  if (model.tokenizer() && model.tokenizer()->eos_id()) out.push_back(*model.tokenizer()->eos_id());
  return out;
}

GenerateOptions with_end_tokens(const Model& model, GenerateOptions options) {
  options.validate();
  for (const std::int32_t id : end_tokens(model)) options.end_tokens.push_back(id);
  return options;
}

std::shared_ptr<const grammar::CompiledGrammar> TextGrammars::compiled(const Model& model, const GenerateOptions& options) {
  require(options.grammar.empty() || options.json_schema.empty(), "grammar and json-schema exclude each other; give one");
  const bool is_schema = !options.json_schema.empty();
  const std::string& text = is_schema ? options.json_schema : options.grammar;
  if (text.empty()) return nullptr;
  std::shared_ptr<infer::Grammars> grammars;
  {
    const std::lock_guard lock(mutex_);
    if (!grammars_ || grammars_->end_tokens() != options.end_tokens)
      grammars_ = std::make_shared<infer::Grammars>(tokenizer_of(model), model.config().vocab_size, options.end_tokens);
    grammars = grammars_;
  }
  using Kind = infer::GrammarSource::Kind;
  return grammars->compiled({is_schema ? Kind::kJsonSchema : Kind::kGbnf, text, is_schema ? "json-schema" : "grammar"});
}

}  // namespace dsmoe
