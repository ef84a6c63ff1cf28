// Vocabularies as the Python package tiktoken writes them: a line for each token, its bytes in base64 and its rank, which
// is its id and says when it is made of others. What else belongs to such a tokenizer (how texts are cut, control tokens)
// is Python code in the folders of models; that of two families is known here.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/tokenizer.h"

namespace dsmoe {

// Whether a file of this name is such a vocabulary of a known family: tiktoken.model (Kimi-K2, Moonlight), hy.tiktoken
// (Hunyuan-A13B).
bool is_ranks_file(std::string_view name);
std::filesystem::path ranks_file(const std::filesystem::path& folder);  // empty where the folder has none

// The bytes of each token, by rank. `in_order`: the lines must come in the order of their ranks. `where` begins messages.
std::vector<std::string> read_ranks(std::string_view text, const std::string& where, bool in_order);

// `name` is that of the file; `config` is tokenizer_config.json and may be empty, as may `jinja`, chat_template.jinja. The
// tokenizer has a tokenizer.json of the same meaning, and tokenizer_config.json without what asks for the Python code.
Tokenizer tokenizer_of_ranks(std::string_view name, std::string_view text, const std::string& config, std::string jinja);

}  // namespace dsmoe
