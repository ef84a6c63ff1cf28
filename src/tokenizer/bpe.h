// Byte-pair merges: joins neighbouring tokens of a piece, always the pair that was learned first, until none is left.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocab.h"

namespace dsmoe {

struct BpeScratch {
  struct Symbol {
    std::int32_t id;
    std::int32_t rank;      // of the pair with the next symbol
    std::int32_t previous;  // -1 for none
    std::int32_t next;      // -1 for none
  };
  struct Candidate {
    std::int32_t rank, at;
    friend bool operator>(const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
    }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

class Bpe {
 public:
  // Reads "vocab" into the vocabulary and "merges" into its own table. Pieces begin as the tokens of their bytes, or, with
  // byte_fallback, as those of their characters and of the bytes of a character that is none. What the model asks for
  // beyond that is refused by name.
  Bpe(const nlohmann::json& model, Vocab& vocab);
  bool of_characters() const { return of_characters_; }  // byte_fallback
  bool has_merges(std::span<const std::string> merges, const Vocab& vocab) const;
  void encode(std::string_view piece, const Vocab& vocab, BpeScratch& scratch, std::vector<std::int32_t>& out) const;

 private:
  struct Merge {
    std::uint64_t pair = kNoPair;
    std::int32_t rank = kNoRank;
    std::int32_t id = -1;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};
  static constexpr std::int32_t kNoRank = 0x7FFFFFFF;

  void read_merges(const nlohmann::json& merges, const Vocab& vocab);
  void insert(std::int32_t left, std::int32_t right, std::int32_t rank, std::int32_t id);
  const Merge& find(std::int32_t left, std::int32_t right) const;
  void fill_bytes(std::string_view piece, std::vector<BpeScratch::Symbol>& symbols) const;
  void fill_characters(std::string_view piece, const Vocab& vocab, std::vector<BpeScratch::Symbol>& symbols) const;
  void merge_short(std::vector<BpeScratch::Symbol>& symbols) const;
  void merge_long(BpeScratch& scratch) const;

  std::array<std::int32_t, 256> byte_ids_{};  // -1 where the vocabulary lacks the byte
  std::vector<Merge> table_;                  // open addressing, at most half full
  int shift_ = 63;
  std::int32_t merges_ = 0;
  std::int32_t unk_ = -1;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  bool of_characters_ = false;
};

}  // namespace dsmoe
