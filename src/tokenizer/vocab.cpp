#include "tokenizer/vocab.h"

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe {

namespace {
// Ids may have gaps, but one absurd id must not allocate absurd memory.
constexpr std::int32_t kMaxId = (1 << 21) - 1;
}  // namespace

Vocab::Entry& Vocab::entry(std::int32_t id) {
  if (id < 0 || id > kMaxId) fail(ErrorCode::kFormat, "tokenizer: token id {} is not in 0..{}", id, kMaxId);
  if (id >= size()) entries_.resize(index(id) + 1);
  return entries_[index(id)];
}

void Vocab::add(std::int32_t id, std::string token) {
  Entry& e = entry(id);
  if (e.used) fail(ErrorCode::kFormat, "tokenizer: two tokens have the id {}, one of them {}", id, in_quotes(token));
  e.used = e.of_model = true;
  e.bytes = decoder_.bytes(token);
  ids_.insert_or_assign(std::move(token), id);
}

void Vocab::add_plain(std::int32_t id, const std::string& token, bool special) {
  const auto known = id_of(token);
  Entry& e = entry(id);
  if ((known && *known != id) || (e.used && !known))
    fail(ErrorCode::kFormat, "tokenizer: the added token {} has the id {}, which the vocabulary contradicts",
         in_quotes(token), id);
  e.used = true;
  e.special = special;
  e.bytes = decoder_.byte_level ? token : decoder_.bytes(token);  // in a byte-level file its text is its bytes
  ids_.try_emplace(token, id);
}

std::optional<std::int32_t> Vocab::id_of(std::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<std::int32_t> Vocab::model_id_of(std::string_view token) const {
  const auto id = id_of(token);
  return id && entries_[index(*id)].of_model ? id : std::nullopt;
}

}  // namespace dsmoe
