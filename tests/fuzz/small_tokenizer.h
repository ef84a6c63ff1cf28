// A tokenizer of a few hundred tokens, made on the spot: every byte, some merges, bos and eos, a chat template.
#pragma once

#include <string>

#include "dsmoe/tokenizer.h"
#include "tokenizer/byte_level.h"

namespace dsmoe {

inline TokenizerParts small_tokenizer_parts() {
  TokenizerParts parts;
  for (int b = 0; b < 256; ++b) parts.vocab.push_back(byte_level::encode(std::string(1, static_cast<char>(b))));
  for (const auto& [left, right] : {std::pair{"t", "h"}, {"th", "e"}, {"i", "n"}}) {
    parts.merges.push_back(std::string(left) + " " + right);
    parts.vocab.push_back(std::string(left) + right);
  }
  for (const char* text : {"<bos>", "<eos>"}) {
    parts.added_tokens.push_back({.id = static_cast<std::int32_t>(parts.vocab.size()), .content = text, .special = true});
    parts.vocab.emplace_back(text);
  }
  parts.pre_tokenizer = pre_tokenizer_json("deepseek-llm");
  parts.bos_token = "<bos>", parts.eos_token = "<eos>", parts.add_bos = true;
  parts.chat_template =
      "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}A: {{ m['content'] }}{{ eos_token }}"
      "{% else %}U: {{ m['content'] }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}";
  return parts;
}

}  // namespace dsmoe
