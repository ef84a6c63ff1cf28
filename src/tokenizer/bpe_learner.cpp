#include "tokenizer/bpe_learner.h"

#include <algorithm>
#include <limits>

#include "core/fail.h"
#include "tokenizer/byte_level.h"

namespace dsmoe {

namespace {
constexpr int kFirstBits = 16;
}  // namespace

BpeLearner::BpeLearner(const std::vector<std::string>& alphabet, const std::vector<std::string>& reserved)
    : table_(std::size_t{1} << kFirstBits), shift_(64 - kFirstBits) {
  for (const std::string& token : reserved) ids_.emplace(token, -1);
  for (std::size_t i = 0; i < alphabet.size(); ++i) {
    const auto bytes = byte_level::decode(alphabet[i]);
    invariant(bytes && bytes->size() == 1, "the alphabet of the BPE trainer");
    byte_ids_[static_cast<unsigned char>(bytes->front())] = static_cast<Symbol>(i);
    ids_.insert_or_assign(alphabet[i], static_cast<Symbol>(i));
  }
}

void BpeLearner::add_word(std::string_view bytes, std::uint64_t count) {
  invariant(words_.size() < std::numeric_limits<std::uint32_t>::max(), "too many different words");
  const auto number = static_cast<std::uint32_t>(words_.size());
  words_.push_back({symbols_.size(), static_cast<std::uint32_t>(bytes.size()), count});
  for (const char c : bytes) symbols_.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  for (std::size_t i = words_.back().begin; i + 1 < symbols_.size(); ++i)
    count_pair(symbols_[i], symbols_[i + 1], number, count);
}

std::uint32_t BpeLearner::pair_at(std::uint64_t key) {
  // Fibonacci hashing: the upper bits of the product depend on all bits of the key.
  std::size_t at = (key * 0x9E3779B97F4A7C15ull) >> shift_;
  while (table_[at] != 0 && pairs_[table_[at] - 1].key != key) at = (at + 1) & (table_.size() - 1);
  if (table_[at] != 0) return table_[at] - 1;
  pairs_.push_back({.key = key});
  table_[at] = static_cast<std::uint32_t>(pairs_.size());
  if (pairs_.size() * 2 > table_.size()) grow_table();
  return static_cast<std::uint32_t>(pairs_.size() - 1);
}

void BpeLearner::grow_table() {
  table_.assign(table_.size() * 2, 0);
  --shift_;
  for (std::uint32_t i = 0; i < pairs_.size(); ++i) {
    std::size_t at = (pairs_[i].key * 0x9E3779B97F4A7C15ull) >> shift_;
    while (table_[at] != 0) at = (at + 1) & (table_.size() - 1);
    table_[at] = i + 1;
  }
}

void BpeLearner::count_pair(Symbol left, Symbol right, std::uint32_t word, std::uint64_t count) {
  const std::uint32_t number = pair_at(key_of(left, right));
  Pair& pair = pairs_[number];
  pair.count += count;
  if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
  if (!pair.changed) changed_.push_back(number);
  pair.changed = true;
}

void BpeLearner::push_changed() {
  for (const std::uint32_t number : changed_) {
    Pair& pair = pairs_[number];
    pair.changed = false;
    heap_.push_back({pair.count, pair.key});
    std::push_heap(heap_.begin(), heap_.end());
  }
  changed_.clear();
}

void BpeLearner::merge_in_word(std::uint32_t number, Symbol left, Symbol right, Symbol joined) {
  Word& word = words_[number];
  Symbol* const s = symbols_.data() + word.begin;
  std::uint32_t to = 0;
  for (std::uint32_t from = 0; from < word.size; ++from) {
    if (from + 1 == word.size || s[from] != left || s[from + 1] != right) {
      s[to++] = s[from];
      continue;
    }
    // From left to right, so that what stands before is merged already: of three equal symbols the first two join.
    if (to > 0) {
      uncount_pair(s[to - 1], left, word.count);
      count_pair(s[to - 1], joined, number, word.count);
    }
    if (from + 2 < word.size) {
      uncount_pair(right, s[from + 2], word.count);
      count_pair(joined, s[from + 2], number, word.count);
    }
    s[to++] = joined;
    ++from;
  }
  word.size = to;
}

void BpeLearner::learn(std::int32_t vocab_size, std::uint64_t min_count, TokenizerParts& parts,
                       const std::function<void(std::int32_t, std::int32_t)>& progress) {
  push_changed();
  const auto have = [&] { return static_cast<std::int32_t>(parts.vocab.size()); };
  const std::int32_t before = have();
  while (have() < vocab_size && !heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate best = heap_.back();
    heap_.pop_back();
    const std::uint32_t number = pair_at(best.key);
    if (pairs_[number].count != best.count) {  // it has become rarer since, or a newer entry has been used
      if (pairs_[number].count > 0 && pairs_[number].count < best.count) {
        heap_.push_back({pairs_[number].count, best.key});
        std::push_heap(heap_.begin(), heap_.end());
      }
      continue;
    }
    if (best.count < std::max<std::uint64_t>(min_count, 1)) break;
    const auto left = static_cast<Symbol>(best.key >> 32), right = static_cast<Symbol>(best.key & 0xFFFFFFFFu);
    const std::string& left_text = parts.vocab[static_cast<std::size_t>(left)];
    const std::string& right_text = parts.vocab[static_cast<std::size_t>(right)];
    const std::string text = left_text + right_text;
    // Two ways to the same text ("a" + "bc", "ab" + "c") are two merges and one token.
    const auto [known, fresh] = ids_.emplace(text, have());
    const Symbol joined = known->second;
    const std::vector<std::uint32_t> words = std::move(pairs_[number].words);
    pairs_[number].words.clear();
    if (joined >= 0) {
      // A pair can come back when its token has been made in another way since.
      if (!pairs_[number].merged) parts.merges.push_back(left_text + " " + right_text);
      pairs_[number].merged = true;
      if (fresh) parts.vocab.push_back(text);
      for (const std::uint32_t word : words) merge_in_word(word, left, right, joined);
    }
    // None is left, whatever was counted for overlaps like "aaa". A reserved text is never joined.
    pairs_[pair_at(best.key)].count = 0;
    push_changed();
    if (progress) progress(have() - before, vocab_size - before);
  }
}

}  // namespace dsmoe
