// A tokenizer as GGUF metadata, and back.
#pragma once

#include <optional>

#include "dsmoe/tokenizer.h"
#include "io/gguf_metadata.h"

namespace dsmoe {

// None when the file has no vocabulary. A kind of tokenizer or pre-tokenizer that is not known is refused by its name.
// Where the file carries tokenizer.json, that is used, but the format's own keys win where they were edited: the special
// tokens, what is put around a text, the chat template, the tokens with their types, the merges, the pre-tokenizer.
std::optional<Tokenizer> tokenizer_from_gguf(const io::GgufMetadata& metadata);

// Sets the keys of the tokenizer. Every row of the model's tables needs a token there: ids without one get a
// placeholder. A pipeline that the format has no name for is refused, with what to do. tokenizer.json and
// tokenizer_config.json go along as they are, and chat_template.jinja as the template, so that they survive the way to GGUF
// and back.
void put_tokenizer(const Tokenizer& tokenizer, std::int64_t vocab_size, io::GgufMetadata& metadata);

// For a model without a tokenizer: the keys that let other programs run it on token ids.
void put_no_tokenizer(io::GgufMetadata& metadata);

}  // namespace dsmoe
