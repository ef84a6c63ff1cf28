// The grammars that texts of one model are kept within: compiled once, and kept for who asks for the same again. May be
// used from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/tokenizer.h"
#include "grammar/matcher.h"
#include "infer/request.h"

namespace dsmoe::infer {

struct GrammarSource {
  enum class Kind : std::uint8_t { kGbnf, kJsonSchema, kJsonObject, kMade };
  Kind kind = Kind::kGbnf;
  std::string text;                             // empty for kJsonObject; the same for the same grammar, for kMade
  std::string where;                            // begins messages about it
  std::function<grammar::Grammar()> make = {};  // of kMade

  bool same(const GrammarSource& other) const { return kind == other.kind && text == other.text; }
};

class Grammars {
 public:
  static constexpr std::size_t kMostBytes = 256 << 20;  // of token sets that are kept
  // `shown`: control tokens that are written as text, too.
  Grammars(Tokenizer tokenizer, Index vocab_size, std::vector<std::int32_t> end_tokens, std::size_t most_bytes = kMostBytes,
           std::vector<std::int32_t> shown = {});

  const std::vector<std::int32_t>& end_tokens() const { return end_tokens_; }
  // Throws for one that is wrong or too large. The first call makes the vocabulary's tree; a grammar takes from a
  // millisecond to more than a second. Two threads that ask for the same one may both compile it.
  std::shared_ptr<const grammar::CompiledGrammar> compiled(const GrammarSource& source);
  std::size_t kept() const;

 private:
  struct Entry {
    GrammarSource source;
    std::shared_ptr<const grammar::CompiledGrammar> grammar;
  };
  std::shared_ptr<const grammar::CompiledGrammar> find(const GrammarSource& source);
  std::shared_ptr<const grammar::Vocabulary> vocabulary();

  Tokenizer tokenizer_;
  Index vocab_size_;
  std::vector<std::int32_t> end_tokens_;
  std::size_t most_bytes_;
  std::vector<std::int32_t> shown_;
  std::once_flag made_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

// A request's own place in a grammar.
class GrammarMask : public TokenMask {
 public:
  explicit GrammarMask(std::shared_ptr<const grammar::CompiledGrammar> grammar) : matcher_(std::move(grammar)) {}

  bool allowed(std::span<std::uint32_t> bits) override;
  void accept(std::int32_t id) override;
  bool accept(std::string_view bytes) { return matcher_.accept(bytes); }

 private:
  grammar::Matcher matcher_;
};

// Where a text becomes one within a grammar.
struct GrammarTrigger {
  std::string text;
  bool at_start = false;  // only where it begins the answer, white space aside
};

// Anything goes until one of the triggers is written, and the rest of the text, with the trigger, is kept within a grammar.
class LazyGrammarMask : public TokenMask {
 public:
  LazyGrammarMask(std::shared_ptr<const grammar::CompiledGrammar> grammar, Tokenizer tokenizer,
                  std::vector<GrammarTrigger> triggers)
      : grammar_(std::move(grammar)), tokenizer_(std::move(tokenizer)), triggers_(std::move(triggers)) {}

  bool anything() const override { return !mask_; }
  bool allowed(std::span<std::uint32_t> bits) override;
  void accept(std::int32_t id) override;

 private:
  std::size_t trigger_at() const;

  std::shared_ptr<const grammar::CompiledGrammar> grammar_;
  Tokenizer tokenizer_;
  std::vector<GrammarTrigger> triggers_;
  std::string text_;      // the end of it, from where a trigger may begin
  bool at_start_ = true;  // text_ is the whole answer
  bool missed_ = false;   // a token went on behind a trigger as the grammar does not
  std::optional<GrammarMask> mask_;
};

}  // namespace dsmoe::infer
