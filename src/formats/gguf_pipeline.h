// What GGUF files say of a tokenizer's pipeline by a name alone, and what they take for granted.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dsmoe {

[[noreturn]] void cannot_carry(const std::string& what);

// The name for a tokenizer.json, after what the format takes for granted is seen to be so.
std::string pipeline_name(const nlohmann::json& file);
// One way of cutting a text has several names.
std::string pre_tokenizer_key(const std::string& pre);

// Tokenizers of these pipelines bring texts into NFC. Other readers of such files do not, which changes nothing for texts
// that are in this form already, as nearly all are.
bool implies_nfc(std::string_view pre);

// Ids say which tokens are joined first, as tiktoken's ranks do.
bool implies_ranks(std::string_view pre);
// A piece that is a token as a whole is left so. Other readers do not with ranks, which changes nothing for a token that is
// joined of others.
bool implies_whole_tokens(std::string_view pre);

// Whether a text gets a space in front, of a vocabulary of characters. What the format takes for granted: spaces are marks,
// and the text is one piece. A Metaspace puts no second mark before one that is there, and with "first" none behind an
// added token, which other readers of such files do.
bool prefix_space(const nlohmann::json& file);

}  // namespace dsmoe
