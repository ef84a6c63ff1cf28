#include "tokenizer/encoder.h"

namespace dsmoe {

void Encoder::encode(std::string_view piece, std::size_t stage, EncodeState& state, std::vector<std::int32_t>& out) const {
  if (piece.empty()) return;
  if (piece.size() > WordCache::kMaxBytes) return encode_uncached(piece, stage, state, out);
  const auto key = static_cast<std::uint8_t>(stage);
  const auto [slot, hit] = state.cache.find(piece, key);
  if (hit) {
    out.insert(out.end(), slot->ids.begin(), slot->ids.begin() + slot->count);
    return;
  }
  const std::size_t before = out.size();
  encode_uncached(piece, stage, state, out);
  WordCache::store(*slot, piece, key, std::span(out).subspan(before));
}

void Encoder::encode_uncached(std::string_view piece, std::size_t stage, EncodeState& state,
                              std::vector<std::int32_t>& out) const {
  for (; stage < stages.size(); ++stage) {
    const SplitStage& s = stages[stage];
    std::string prefixed;
    const bool prefix = s.prefix_space && !piece.starts_with(' ');
    if (prefix) prefixed.assign(" ").append(piece);
    const std::string_view text = prefix ? std::string_view(prefixed) : piece;
    if (!prefix && s.behavior == SplitBehavior::kIsolated) {
      if (split_isolated(text, stage, state, out)) return;
      continue;
    }
    std::vector<PieceRange> pieces;
    split(s, text, state.regex, pieces);
    for (const auto [begin, end] : pieces) encode(text.substr(begin, end - begin), stage + 1, state, out);
    return;
  }
  bpe.encode(piece, vocab, state.bpe, out);
}

// The common case without a list of pieces. False when the stage leaves the piece whole, which spares a look-up
// that would always miss.
bool Encoder::split_isolated(std::string_view piece, std::size_t stage, EncodeState& state,
                             std::vector<std::int32_t>& out) const {
  std::size_t done = 0;
  bool whole = true;
  stages[stage].pattern.for_each(piece, state.regex, [&](Regex::Match match) {
    if (match.begin == 0 && match.end == piece.size()) return;
    whole = false;
    encode(piece.substr(done, match.begin - done), stage + 1, state, out);
    encode(piece.substr(match.begin, match.end - match.begin), stage + 1, state, out);
    done = match.end;
  });
  if (whole) return false;
  encode(piece.substr(done), stage + 1, state, out);
  return true;
}

}  // namespace dsmoe
