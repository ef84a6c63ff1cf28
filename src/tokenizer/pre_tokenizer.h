// Cuts a text into the pieces within which bytes may merge: the "pre_tokenizer" of tokenizer.json as a list of
// stages, each of which cuts up the pieces of the one before.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/metaspace.h"
#include "tokenizer/regex.h"

namespace dsmoe {

enum class SplitBehavior : std::uint8_t {
  kIsolated,            // every match is a piece
  kRemoved,             // matches are dropped
  kMergedWithPrevious,  // a match belongs to the piece before it
  kMergedWithNext,      // a match belongs to the piece after it
  kContiguous,          // neighbouring matches are one piece
};

struct SplitStage {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;        // what does not match counts as the match
  bool prefix_space = false;  // before this stage, a piece that does not begin with a space gets one
};

// The stages; the last one hands over to the bytes. A pipeline without ByteLevel at its end is refused.
std::vector<SplitStage> read_pre_tokenizer(const nlohmann::json& description);

// Of a vocabulary of characters: no ByteLevel, and a Metaspace may come first.
struct CharacterStages {
  std::optional<Metaspace> metaspace;
  std::vector<SplitStage> stages;
};
CharacterStages read_character_stages(const nlohmann::json& description);

struct PieceRange {
  std::size_t begin, end;
};

// The pieces of a text (not empty) after one stage, none of them empty.
void split(const SplitStage& stage, std::string_view text, RegexScratch& scratch, std::vector<PieceRange>& out);

}  // namespace dsmoe
