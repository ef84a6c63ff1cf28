// The vocabulary that goes with the built-in corpus, for training without any file.
#pragma once

#include "dsmoe/tokenizer.h"

namespace dsmoe::train {

// Learned on the spot from the built-in corpus, always the same for one size, in about a second. Its bos, eos and pad
// tokens have the ids 256, 257 and 258. The corpus has few words, so large sizes are not reached.
Tokenizer builtin_tokenizer(std::int32_t vocab_size);

}  // namespace dsmoe::train
