// The merges of a byte-pair vocabulary, from words with their counts: every merge touches only the words that hold it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsmoe/tokenizer.h"

namespace dsmoe {

class BpeLearner {
 public:
  // alphabet: the 256 characters of the byte-level alphabet, by id. No merge makes the text of a reserved token.
  BpeLearner(const std::vector<std::string>& alphabet, const std::vector<std::string>& reserved);

  void add_word(std::string_view bytes, std::uint64_t count);

  // Appends merges and their tokens to parts until it has vocab_size tokens or no pair occurs min_count times. Once only.
  void learn(std::int32_t vocab_size, std::uint64_t min_count, TokenizerParts& parts,
             const std::function<void(std::int32_t, std::int32_t)>& progress);

 private:
  using Symbol = std::int32_t;
  struct Word {
    std::size_t begin;
    std::uint32_t size;
    std::uint64_t count;
  };
  struct Pair {
    std::uint64_t key = 0;  // left token in the upper half, so that keys sort like pairs
    std::uint64_t count = 0;
    std::vector<std::uint32_t> words;  // that hold it, or did once
    bool changed = false;              // its count has grown since it was last put on the heap
    bool merged = false;
  };
  struct Candidate {
    std::uint64_t count, key;
    bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : key > other.key; }
  };

  static std::uint64_t key_of(Symbol left, Symbol right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::uint32_t pair_at(std::uint64_t key);  // its number in pairs_, made when new
  void grow_table();
  void count_pair(Symbol left, Symbol right, std::uint32_t word, std::uint64_t count);
  void uncount_pair(Symbol left, Symbol right, std::uint64_t count) { pairs_[pair_at(key_of(left, right))].count -= count; }
  void push_changed();
  void merge_in_word(std::uint32_t number, Symbol left, Symbol right, Symbol joined);

  std::array<Symbol, 256> byte_ids_{};
  std::unordered_map<std::string, Symbol> ids_;  // -1: reserved
  std::vector<Symbol> symbols_;                  // of all words, one after another
  std::vector<Word> words_;
  std::vector<Pair> pairs_;
  std::vector<std::uint32_t> table_;  // open addressing: number of the pair + 1, 0 for a free slot
  int shift_ = 0;
  std::vector<std::uint32_t> changed_;
  std::vector<Candidate> heap_;
};

}  // namespace dsmoe
