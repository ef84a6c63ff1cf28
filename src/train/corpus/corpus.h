// The built-in corpus: endless text from seven clearly different domains, made from a seed. Document `number` depends on
// (seed, number) alone and is the same on every machine: integers of the Philox generator, lists in a fixed order, no
// locale. Each domain has structure that a small model can learn and a test can check (docs/howto/data.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dsmoe::train {

struct Document {
  std::string text;
  std::uint16_t domain = 0;  // a number into corpus_domains()
};

std::span<const std::string> corpus_domains();

// Every run of corpus_domains().size() documents that begins at a multiple of it has each domain once.
Document corpus_document(std::uint64_t seed, std::uint64_t number);

}  // namespace dsmoe::train
