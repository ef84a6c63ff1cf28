// For compare_with_hf.py and compare_with_tiktoken.py: reads one JSON value per line from stdin and answers each with one
// line of JSON.
//   "text"     -> the ids
//   [1, 2, 3]  -> the text
// Usage: tokenizer_encode_lines FOLDER [--no-special], or FOLDER --save OUT, which writes the tokenizer's files
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "dsmoe/error.h"
#include "dsmoe/tokenizer.h"

int main(int argc, char** argv) {
  if (argc < 2) return std::cerr << "usage: tokenizer_encode_lines FOLDER [--no-special | --save OUT]\n", 2;
  try {
    const auto tokenizer = dsmoe::Tokenizer::load(argv[1]);
    if (argc == 4) return tokenizer.save(argv[3]), 0;
    dsmoe::EncodeOptions options;
    options.add_bos = options.add_eos = false;
    options.parse_special = argc < 3;
    for (std::string line; std::getline(std::cin, line);) {
      const auto value = nlohmann::json::parse(line);
      if (value.is_string())
        std::cout << nlohmann::json(tokenizer.encode(value.get<std::string>(), options)).dump() << '\n';
      else
        std::cout << nlohmann::json(tokenizer.decode(value.get<std::vector<std::int32_t>>())).dump() << '\n';
    }
  } catch (const dsmoe::Error& error) {
    return std::cerr << "error: " << error.what() << '\n', 1;
  }
}
