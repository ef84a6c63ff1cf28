#include "train/corpus/builtin_tokenizer.h"

#include "tokenizer/bpe_trainer.h"
#include "train/corpus/corpus.h"

namespace dsmoe::train {

namespace {
constexpr std::uint64_t kSeed = 0, kDocuments = 4096;  // about 1 MB; more does not change which words are frequent
}  // namespace

Tokenizer builtin_tokenizer(std::int32_t vocab_size) {
  BpeTrainer trainer({.vocab_size = vocab_size});
  for (std::uint64_t i = 0; i < kDocuments; ++i) trainer.add(corpus_document(kSeed, i).text);
  return Tokenizer::from_parts(trainer.train());
}

}  // namespace dsmoe::train
