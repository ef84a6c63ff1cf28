#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "core/utf8.h"
#include "tokenizer/byte_level.h"

namespace dsmoe {

namespace {

constexpr const char* kModelPlace = "tokenizer.json: model";
// Up to here, looking through all pairs for the best one is quicker than a heap of them.
constexpr std::size_t kShort = 48;

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

void refuse_extras(const nlohmann::json& model) {
  const auto* type = json_read::find(model, "type");
  if (type && *type != "BPE")
    fail(ErrorCode::kUnsupported, "{}: type {} is not supported (only BPE is)", kModelPlace,
         in_quotes(type->is_string() ? type->get_ref<const std::string&>() : json_read::shown(*type)));
  if (const auto* dropout = json_read::find(model, "dropout"); dropout && *dropout != 0)
    fail(ErrorCode::kUnsupported, "{}: dropout is not supported", kModelPlace);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const auto* affix = json_read::find(model, key); affix && *affix != "")
      fail(ErrorCode::kUnsupported, "{}: {} is not supported", kModelPlace, key);
}

}  // namespace

Bpe::Bpe(const nlohmann::json& model, Vocab& vocab) {
  refuse_extras(model);
  for (const auto& [token, id] : json_read::object(model, "vocab", kModelPlace).items()) {
    const auto number = json_read::try_as<std::int32_t>(id);
    if (!number || *number < 0)
      fail(ErrorCode::kFormat, "{}: the id of the token {} is not a number that fits", kModelPlace, in_quotes(token));
    vocab.add(*number, token);
  }
  of_characters_ = json_read::get_or(model, "byte_fallback", false, kModelPlace);
  if (of_characters_ == vocab.decoder().byte_level)
    fail(ErrorCode::kUnsupported, "{}: byte_fallback is {}, which does not go with the decoder {}", kModelPlace,
         of_characters_, of_characters_ ? "ByteLevel" : "ByteFallback");
  for (unsigned b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const std::string token = of_characters_ ? byte_token(static_cast<unsigned char>(b)) : byte_level::encode({&byte, 1});
    byte_ids_[b] = vocab.id_of(token).value_or(-1);
    if (of_characters_ && byte_ids_[b] < 0)
      fail(ErrorCode::kUnsupported, "{}: byte_fallback without a token {} is not supported", kModelPlace, token);
  }
  read_merges(json_read::array(model, "merges", kModelPlace), vocab);
  ignore_merges_ = json_read::get_or(model, "ignore_merges", false, kModelPlace);
  fuse_unk_ = json_read::get_or(model, "fuse_unk", false, kModelPlace);
  if (json_read::find(model, "unk_token")) {
    const auto unk = json_read::get<std::string>(model, "unk_token", kModelPlace);
    const auto id = vocab.id_of(unk);
    if (!id) fail(ErrorCode::kFormat, "{}: unk_token {} is not in the vocabulary", kModelPlace, in_quotes(unk));
    unk_ = *id;
  }
}

void Bpe::read_merges(const nlohmann::json& merges, const Vocab& vocab) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(2, merges.size() * 2));
  table_.resize(slots);
  shift_ = 64 - std::countr_zero(slots);
  std::int32_t rank = 0;
  for (const auto& merge : merges) {
    std::string left, right;
    if (merge.is_string()) {
      const std::string& both = merge.get_ref<const std::string&>();
      const std::size_t space = both.find(' ');
      if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
        fail(ErrorCode::kFormat, "{}: merge {} is {}, which is not two tokens", kModelPlace, rank, in_quotes(both));
      left = both.substr(0, space), right = both.substr(space + 1);
    } else if (auto pair = json_read::try_as<std::pair<std::string, std::string>>(merge)) {
      left = std::move(pair->first), right = std::move(pair->second);
    } else {
      fail(ErrorCode::kFormat, "{}: merge {} is neither \"left right\" nor [\"left\", \"right\"]", kModelPlace, rank);
    }
    const auto l = vocab.id_of(left), r = vocab.id_of(right), both = vocab.id_of(left + right);
    if (!l || !r || !both)
      fail(ErrorCode::kFormat, "{}: merge {}, {} and {}, has a part or a result that is not in the vocabulary", kModelPlace,
           rank, in_quotes(left), in_quotes(right));
    insert(*l, *r, rank++, *both);
  }
  merges_ = rank;
}

bool Bpe::has_merges(std::span<const std::string> merges, const Vocab& vocab) const {
  if (merges.size() != static_cast<std::size_t>(merges_)) return false;
  for (std::int32_t rank = 0; const std::string& merge : merges) {
    const std::size_t space = merge.find(' ');
    if (space == std::string::npos) return false;
    const std::string_view both = merge;
    const auto left = vocab.id_of(both.substr(0, space)), right = vocab.id_of(both.substr(space + 1));
    if (!left || !right || find(*left, *right).rank != rank++) return false;
  }
  return true;
}

void Bpe::insert(std::int32_t left, std::int32_t right, std::int32_t rank, std::int32_t id) {
  Merge& slot = const_cast<Merge&>(find(left, right));
  slot = {pair_of(left, right), rank, id};
}

// The entry of the pair, or the free slot where it belongs.
const Bpe::Merge& Bpe::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  // Fibonacci hashing: the upper bits of the product depend on all bits of the pair.
  std::size_t at = (pair * 0x9E3779B97F4A7C15ull) >> shift_;
  while (table_[at].pair != pair && table_[at].pair != kNoPair) at = (at + 1) & (table_.size() - 1);
  return table_[at];
}

void Bpe::fill_bytes(std::string_view piece, std::vector<BpeScratch::Symbol>& symbols) const {
  bool after_unk = false;
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t id = byte_ids_[byte];
    const bool unknown = id < 0;
    if (unknown) {
      if (unk_ < 0)
        fail(ErrorCode::kUnsupported, "the vocabulary has no token for the byte 0x{:02X} and no unk_token", byte);
      if (after_unk && fuse_unk_) continue;
      id = unk_;
    }
    after_unk = unknown;
    symbols.push_back({id, kNoRank, 0, 0});
  }
}

void Bpe::fill_characters(std::string_view piece, const Vocab& vocab, std::vector<BpeScratch::Symbol>& symbols) const {
  for (std::size_t at = 0; at < piece.size();) {
    const std::string_view character = piece.substr(at, utf8::sequence_at(piece, at).length);
    at += character.size();
    if (const auto id = vocab.model_id_of(character)) {
      symbols.push_back({*id, kNoRank, 0, 0});
      continue;
    }
    for (const char byte : character) symbols.push_back({byte_ids_[static_cast<unsigned char>(byte)], kNoRank, 0, 0});
  }
}

void Bpe::merge_short(std::vector<BpeScratch::Symbol>& symbols) const {
  const auto rank_at = [&](std::size_t i) {
    return i + 1 < symbols.size() ? find(symbols[i].id, symbols[i + 1].id).rank : kNoRank;
  };
  for (;;) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < symbols.size(); ++i)
      if (symbols[i].rank < symbols[best].rank) best = i;
    if (symbols[best].rank == kNoRank) return;
    symbols[best].id = find(symbols[best].id, symbols[best + 1].id).id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    symbols[best].rank = rank_at(best);
    if (best > 0) symbols[best - 1].rank = rank_at(best - 1);
  }
}

void Bpe::merge_long(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  const auto at = [&](std::int32_t i) -> BpeScratch::Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  for (std::size_t i = 0; i < symbols.size(); ++i)
    if (symbols[i].rank != kNoRank) heap.push_back({symbols[i].rank, static_cast<std::int32_t>(i)});
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update = [&](std::int32_t i) {
    at(i).rank = at(i).next < 0 ? kNoRank : find(at(i).id, at(at(i).next).id).rank;
    if (at(i).rank == kNoRank) return;
    heap.push_back({at(i).rank, i});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto candidate = heap.back();
    heap.pop_back();
    BpeScratch::Symbol& left = at(candidate.at);
    // A rank belongs to one pair, so an unequal rank means that the pair has gone. A symbol that was merged away
    // has no rank.
    if (left.rank != candidate.rank) continue;
    BpeScratch::Symbol& right = at(left.next);
    left.id = find(left.id, right.id).id;
    left.next = right.next;
    right.rank = kNoRank;
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = candidate.at;
    update(candidate.at);
    if (left.previous >= 0) update(left.previous);
  }
  std::erase_if(symbols, [](const auto& symbol) { return symbol.id < 0; });
}

void Bpe::encode(std::string_view piece, const Vocab& vocab, BpeScratch& scratch, std::vector<std::int32_t>& out) const {
  if (piece.empty()) return;
  if (ignore_merges_) {
    if (const auto id = vocab.model_id_of(of_characters_ ? std::string(piece) : byte_level::encode(piece)))
      return out.push_back(*id);
  }
  auto& symbols = scratch.symbols;
  symbols.clear();
  of_characters_ ? fill_characters(piece, vocab, symbols) : fill_bytes(piece, symbols);
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    const bool last = i + 1 == symbols.size();
    symbols[i].previous = static_cast<std::int32_t>(i) - 1;
    symbols[i].next = last ? -1 : static_cast<std::int32_t>(i) + 1;
    if (!last) symbols[i].rank = find(symbols[i].id, symbols[i + 1].id).rank;
  }
  if (symbols.size() <= kShort)
    merge_short(symbols);
  else
    merge_long(scratch);
  for (const auto& symbol : symbols) out.push_back(symbol.id);
}

}  // namespace dsmoe
