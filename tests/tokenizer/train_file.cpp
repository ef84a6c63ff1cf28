// Learns a vocabulary from a file, for comparisons: train_file TEXT VOCAB_SIZE PRE_TOKENIZER OUT_FOLDER. Prints the speed.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tokenizer/bpe_trainer.h"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  std::ostringstream text;
  text << std::ifstream(argv[1], std::ios::binary).rdbuf();
  const std::string all = std::move(text).str();
  try {
    const auto start = std::chrono::steady_clock::now();
    const auto since = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    dsmoe::BpeTrainer trainer({.vocab_size = std::stoi(argv[2]), .pre_tokenizer = argv[3]});
    trainer.add(all);
    const double counted = since();
    const dsmoe::TokenizerParts parts = trainer.train();
    const double seconds = since();
    dsmoe::Tokenizer::from_parts(parts).save(argv[4]);
    std::printf("%zu bytes, %zu merges: %.2f s (%.2f s counting words), %.2f MB/s\n", all.size(), parts.merges.size(),
                seconds, counted, static_cast<double>(all.size()) / seconds / 1e6);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
