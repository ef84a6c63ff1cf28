#include "train/data/builtin_dataset.h"

#include "core/fail.h"
#include "core/random.h"
#include "train/corpus/corpus.h"
#include "train/data/open_dataset.h"

namespace dsmoe::train {

namespace {
constexpr int kDocumentBits = 20;  // of a sequence, enough for any length: a document has some hundred bytes
constexpr std::uint64_t kHeldOut = std::uint64_t{1} << 63, kStartSeed = 0x57A7'0FF5'E751'11E5u;
constexpr Index kMaxSequences = Index{1} << (63 - kDocumentBits), kMaxLength = Index{1} << 24;
}  // namespace

BuiltinDataset::BuiltinDataset(const Tokenizer& tokenizer, Index sequence_length, std::uint64_t seed, bool held_out)
    : encoder_(tokenizer), length_(sequence_length), seed_(seed), held_out_(held_out) {
  require(sequence_length <= kMaxLength, "a sequence of {} tokens; at most {}", sequence_length, kMaxLength);
}

Index BuiltinDataset::sequences() const { return held_out_ ? kBuiltinHeldOut : 0; }

std::span<const std::string> BuiltinDataset::labels() const { return corpus_domains(); }

void BuiltinDataset::sequence(std::uint64_t number, std::vector<StreamToken>& out) const {
  const std::uint64_t first = (held_out_ ? kHeldOut : 0) + (number << kDocumentBits);
  const auto want = static_cast<std::size_t>(length_ + 1);
  out.clear();
  std::size_t skip = 0;
  for (std::uint64_t document = first; out.size() < want + skip; ++document) {
    Document made = corpus_document(seed_, document);
    encoder_.encode({.text = std::move(made.text)}, made.domain, out);
    if (document == first && number % 2 == 1) skip = Philox(seed_ ^ kStartSeed, first).below(0, out.size());
  }
  out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(skip));
  out.resize(want);
}

Batch BuiltinDataset::batch(Index first, Index count) const {
  require(first >= 0 && count > 0 && first <= kMaxSequences - count, "a batch of {} sequences from number {}", count,
          first);
  Batch batch{.sequences = count, .length = length_};
  std::vector<StreamToken> tokens;
  for (Index i = first; i < first + count; ++i) {
    sequence(static_cast<std::uint64_t>(held_out_ ? i % kBuiltinHeldOut : i), tokens);
    for (std::size_t at = 0; at + 1 < tokens.size(); ++at) {
      const StreamToken target = tokens[at + 1];
      batch.ids.push_back(tokens[at].id());
      batch.targets.push_back(target.target() ? target.id() : kNoTarget);
      batch.labels.push_back(static_cast<std::uint16_t>(target.label()));
    }
  }
  return batch;
}

}  // namespace dsmoe::train
