// The tokens of a tokenizer as a grammar sees them.
#pragma once

#include <memory>
#include <vector>

#include "dsmoe/tensor.h"
#include "dsmoe/tokenizer.h"
#include "grammar/vocabulary.h"

namespace dsmoe {

// `vocab_size`: the model's, which may be larger. Control tokens are never allowed, but for the end tokens and
// those that are `shown` as text.
std::shared_ptr<const grammar::Vocabulary> grammar_vocabulary(const Tokenizer& tokenizer, Index vocab_size,
                                                              const std::vector<std::int32_t>& end_tokens,
                                                              const std::vector<std::int32_t>& shown = {});

}  // namespace dsmoe
