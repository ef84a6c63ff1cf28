#include "grammar/matcher.h"

#include <algorithm>
#include <unordered_set>

#include "core/fail.h"
#include "grammar/stepper.h"

namespace dsmoe::grammar {

CompiledGrammar::CompiledGrammar(const Grammar& grammar, std::shared_ptr<const Vocabulary> vocabulary, std::size_t prepared)
    : vocabulary_(std::move(vocabulary)), automaton_(grammar), sets_(automaton_, *vocabulary_) {
  sets_.prepare(prepared);
}

Matcher::Matcher(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), at_{{grammar_->automaton().start(grammar_->automaton().root()), Stacks::kOutermost}} {}

namespace {

// Places of the stacks still to be looked at, each with where the tokens have come to.
struct Pending {
  Item item;
  TokenSets::Exits from = TokenSets::kRoot;
  bool operator==(const Pending&) const = default;
};

struct PendingHash {
  std::size_t operator()(const Pending& p) const {
    std::uint64_t h = (static_cast<std::uint64_t>(p.item.node) << 32 | p.item.state) * 0xFF51AFD7ED558CCDull;
    h = (h ^ h >> 32 ^ p.from) * 0xC4CEB9FE1A85EC53ull;
    return static_cast<std::size_t>(h ^ h >> 32);
  }
};

// Those that were added before are not added again: callers meet in ambiguous grammars.
class PendingList {
 public:
  void add(const Pending& p) {
    if (list_.size() < kFew) {
      if (std::find(list_.begin(), list_.end(), p) != list_.end()) return;
    } else {
      if (list_.size() == kFew) seen_.insert(list_.begin(), list_.end());
      if (!seen_.insert(p).second) return;
    }
    list_.push_back(p);
  }
  const Pending& operator[](std::size_t i) const { return list_[i]; }
  std::size_t size() const { return list_.size(); }

 private:
  static constexpr std::size_t kFew = 16;
  std::vector<Pending> list_;
  std::unordered_set<Pending, PendingHash> seen_;
};

}  // namespace

void Matcher::mask(std::span<std::uint64_t> mask) const {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  require(mask.size() == vocabulary.words(), "the mask has {} words, expected {}", mask.size(), vocabulary.words());
  std::fill(mask.begin(), mask.end(), 0);
  if (ended_) return;
  PendingList pending;
  std::vector<const TokenSet*> added;  // many stacks have the same states in them
  for (const Item& item : at_) pending.add({item, TokenSets::kRoot});
  for (std::size_t i = 0; i < pending.size(); ++i) {
    const Pending p = pending[i];
    const TokenSets::Entry& entry = grammar_->token_sets().get(p.item.state, p.from);
    if (!entry.tokens.empty() && std::find(added.begin(), added.end(), &entry.tokens) == added.end()) {
      entry.tokens.add_to(mask);
      added.push_back(&entry.tokens);
    }
    if (entry.exits == TokenSets::kNone) continue;
    for (const Item& caller : stacks_.callers(p.item.node)) pending.add({caller, entry.exits});
  }
  if (!can_end()) return;
  for (const std::int32_t id : vocabulary.end_tokens())
    mask[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (id % 64);
}

bool Matcher::nothing_but_end(std::span<const std::uint64_t> mask) const {
  const std::vector<std::int32_t>& ends = grammar_->vocabulary().end_tokens();
  for (std::size_t i = 0; i < mask.size(); ++i) {
    std::uint64_t word = mask[i];
    for (const std::int32_t id : ends)
      if (static_cast<std::size_t>(id) / 64 == i) word &= ~(std::uint64_t{1} << (id % 64));
    if (word != 0) return false;
  }
  return true;
}

bool Matcher::can_end() const { return !ended_ && Stepper(grammar_->automaton()).can_end(stacks_, at_); }

bool Matcher::accept(std::int32_t id) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  if (ended_ || id < 0 || static_cast<std::size_t>(id) >= vocabulary.size()) return false;
  if (vocabulary.is_end(id)) return ended_ = can_end();
  const std::string_view bytes = vocabulary.bytes(id);
  return !bytes.empty() && accept(bytes);
}

bool Matcher::accept(std::string_view bytes) {
  if (ended_) return false;
  Stepper stepper(grammar_->automaton());
  const std::size_t before = stacks_.size();
  std::vector<Item> at = at_, open;
  for (const char byte : bytes) {
    stepper.close(stacks_, at, open);
    stepper.advance(open, static_cast<std::uint8_t>(byte), at);
    if (at.empty()) {
      stacks_.truncate(before);
      return false;
    }
  }
  at_ = std::move(at);
  if (stacks_.size() > 2 * kept_ + 16) {
    stacks_.keep_only(at_);
    kept_ = stacks_.size();
  }
  return true;
}

}  // namespace dsmoe::grammar
