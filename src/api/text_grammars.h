// What sessions and engines make of a model and the options of a text before they generate it.
#pragma once

#include <memory>
#include <mutex>

#include "api/model_impl.h"
#include "infer/grammars.h"

namespace dsmoe {

// An Error when the model has none.
const Tokenizer& tokenizer_of(const Model& model);

// Checked, and with the model's own end tokens behind those that are given.
GenerateOptions with_end_tokens(const Model& model, GenerateOptions options);

// The grammars of texts, kept for who asks for the same again. May be used from several threads.
class TextGrammars {
 public:
  // `options` with the model's end tokens. Null: they ask for no grammar.
  std::shared_ptr<const grammar::CompiledGrammar> compiled(const Model& model, const GenerateOptions& options);

 private:
  std::mutex mutex_;
  std::shared_ptr<infer::Grammars> grammars_;  // of the end tokens that were last asked for
};

}  // namespace dsmoe
