#include "infer/grammar_vocabulary.h"

#include <algorithm>
#include <string>

namespace dsmoe {

std::shared_ptr<const grammar::Vocabulary> grammar_vocabulary(const Tokenizer& tokenizer, Index vocab_size,
                                                              const std::vector<std::int32_t>& end_tokens,
                                                              const std::vector<std::int32_t>& shown) {
  std::vector<std::string> tokens(static_cast<std::size_t>(std::max<Index>(vocab_size, tokenizer.vocab_size())));
  // Some files have control tokens without the mark; EncodeOptions says how these are known.
  const auto is_control = [&](std::int32_t id) {
    const std::string_view s = tokenizer.bytes(id);
    return tokenizer.is_special(id) || (s.size() >= 4 && s.starts_with("<|") && s.ends_with("|>")) ||
           (s.size() >= 8 && s.starts_with("<｜") && s.ends_with("｜>"));
  };
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (!is_control(id)) tokens[static_cast<std::size_t>(id)] = tokenizer.bytes(id);
  for (const std::int32_t id : shown) tokens[static_cast<std::size_t>(id)] = tokenizer.bytes(id);
  return std::make_shared<grammar::Vocabulary>(tokens, end_tokens);
}

}  // namespace dsmoe
