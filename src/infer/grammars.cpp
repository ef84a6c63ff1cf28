#include "infer/grammars.h"

#include <algorithm>
#include <utility>

#include "core/fail.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "infer/grammar_vocabulary.h"

namespace dsmoe::infer {

namespace {

grammar::Grammar parsed(const GrammarSource& s) {
  switch (s.kind) {
    case GrammarSource::Kind::kGbnf: return grammar::parse_gbnf(s.text, s.where);
    case GrammarSource::Kind::kJsonSchema: return grammar::parse_json_schema(s.text, s.where);
    case GrammarSource::Kind::kMade: return s.make();
    case GrammarSource::Kind::kJsonObject: break;
  }
  return grammar::json_object_grammar();
}

}  // namespace

Grammars::Grammars(Tokenizer tokenizer, Index vocab_size, std::vector<std::int32_t> end_tokens, std::size_t most_bytes,
                   std::vector<std::int32_t> shown)
    : tokenizer_(std::move(tokenizer)),
      vocab_size_(vocab_size),
      end_tokens_(std::move(end_tokens)),
      most_bytes_(most_bytes),
      shown_(std::move(shown)) {}

std::shared_ptr<const grammar::Vocabulary> Grammars::vocabulary() {
  std::call_once(made_, [&] { vocabulary_ = grammar_vocabulary(tokenizer_, vocab_size_, end_tokens_, shown_); });
  return vocabulary_;
}

std::shared_ptr<const grammar::CompiledGrammar> Grammars::find(const GrammarSource& source) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.source.same(source); });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return found->grammar;
}

std::shared_ptr<const grammar::CompiledGrammar> Grammars::compiled(const GrammarSource& source) {
  if (auto found = find(source)) return found;
  auto made = std::make_shared<const grammar::CompiledGrammar>(parsed(source), vocabulary());
  if (auto found = find(source)) return found;
  const std::lock_guard lock(mutex_);
  entries_.push_front({source, made});
  // Token sets grow as texts come to new places, so all are counted again. The newest always stays.
  std::size_t bytes = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    bytes += entry->grammar->token_sets().bytes() + entry->source.text.size();
    entry = entry == entries_.begin() || bytes <= most_bytes_ ? std::next(entry) : entries_.erase(entry);
  }
  return made;
}

std::size_t Grammars::kept() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

bool GrammarMask::allowed(std::span<std::uint32_t> bits) {
  std::vector<std::uint64_t> mask(matcher_.grammar().vocabulary().words());
  matcher_.mask(mask);
  if (matcher_.can_end() && matcher_.nothing_but_end(mask)) return false;
  bool any = false;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = i / 2 < mask.size() ? static_cast<std::uint32_t>(mask[i / 2] >> i % 2 * 32) : 0;
    any = any || bits[i] != 0;
  }
  if (!any) fail(ErrorCode::kUnsupported, "the grammar asks for a character here that no token of the model can write");
  return true;
}

void GrammarMask::accept(std::int32_t id) {
  invariant(matcher_.accept(id), "the sampler chose a token that the grammar forbids");
}

std::size_t LazyGrammarMask::trigger_at() const {
  std::size_t first = std::string::npos;
  const std::size_t start = text_.find_first_not_of(" \t\r\n");
  for (const GrammarTrigger& t : triggers_) {
    if (!t.at_start) first = std::min(first, text_.find(t.text));
    if (t.at_start && at_start_ && start != std::string::npos && text_.compare(start, t.text.size(), t.text) == 0)
      first = std::min(first, start);
  }
  return first;
}

bool LazyGrammarMask::allowed(std::span<std::uint32_t> bits) {
  if (mask_) return mask_->allowed(bits);
  std::fill(bits.begin(), bits.end(), ~std::uint32_t{0});
  return true;
}

void LazyGrammarMask::accept(std::int32_t id) {
  if (mask_) return mask_->accept(id);
  if (missed_) return;
  text_ += tokenizer_.bytes(id);
  const std::size_t at = trigger_at();
  if (at != std::string::npos) {
    mask_.emplace(grammar_);
    missed_ = !mask_->accept(std::string_view(text_).substr(at));
    if (missed_) mask_.reset();
    text_.clear();
    return;
  }
  // As much as the longest trigger can need.
  std::size_t longest = 0;
  for (const GrammarTrigger& t : triggers_) longest = std::max(longest, t.text.size());
  if (at_start_ && text_.find_first_not_of(" \t\r\n") == std::string::npos) text_.clear();
  if (text_.size() <= longest) return;
  at_start_ = false;
  text_.erase(0, text_.size() - longest);
}

}  // namespace dsmoe::infer
