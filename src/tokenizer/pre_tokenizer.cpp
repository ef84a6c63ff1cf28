#include "tokenizer/pre_tokenizer.h"

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "tokenizer/normalizer.h"

namespace dsmoe {

namespace {

constexpr const char* kWhere = "tokenizer.json: pre_tokenizer";
constexpr int kMaxDepth = 8;            // of sequences in sequences
constexpr std::size_t kMaxStages = 32;  // pieces are cut up recursively, one level for each stage

// The words of GPT-2: contractions, letters, numbers, other marks, white space.
constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

SplitBehavior read_behavior(const nlohmann::json& description) {
  const auto name = json_read::get<std::string>(description, "behavior", kWhere);
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  fail(ErrorCode::kUnsupported, "{}: behavior {} is not supported", kWhere, in_quotes(name));
}

class Reader {
 public:
  std::vector<SplitStage> run(const nlohmann::json& description) {
    add(description, 0);
    if (!byte_level_)
      fail(ErrorCode::kUnsupported, "{}: no ByteLevel at its end; only byte-level BPE is supported", kWhere);
    return std::move(stages_);
  }

  CharacterStages run_of_characters(const nlohmann::json& description) {
    of_characters_ = true;
    add(description, 0);
    return {std::move(metaspace_), std::move(stages_)};
  }

 private:
  void add(const nlohmann::json& description, int depth) {
    if (description.is_null()) return;
    if (!description.is_object() || depth > kMaxDepth)
      fail(ErrorCode::kFormat, "{}: not an object, or nested too deeply", kWhere);
    const auto type = json_read::get<std::string>(description, "type", kWhere);
    if (type == "Sequence") {
      for (const auto& part : json_read::array(description, "pretokenizers", kWhere)) add(part, depth + 1);
      return;
    }
    if (byte_level_) fail(ErrorCode::kUnsupported, "{}: {} after ByteLevel is not supported", kWhere, in_quotes(type));
    if (stages_.size() == kMaxStages) fail(ErrorCode::kUnsupported, "{}: more than {} stages", kWhere, kMaxStages);
    add_stage(type, description);
  }

  void add_stage(const std::string& type, const nlohmann::json& description) {
    if (of_characters_ && type == "Metaspace") {
      if (metaspace_ || !stages_.empty())
        fail(ErrorCode::kUnsupported, "{}: a Metaspace behind other stages is not supported", kWhere);
      metaspace_ = read_metaspace(description, kWhere);
      if (metaspace_->split) stages_.push_back({Regex::literal(metaspace_->mark), SplitBehavior::kMergedWithNext});
    } else if (of_characters_ && type == "ByteLevel") {
      fail(ErrorCode::kUnsupported, "{}: ByteLevel does not go with byte_fallback", kWhere);
    } else if (type == "Split") {
      stages_.push_back({read_pattern(description, kWhere), read_behavior(description),
                         json_read::get_or(description, "invert", false, kWhere)});
    } else if (type == "Digits") {
      const bool each = json_read::get_or(description, "individual_digits", false, kWhere);
      stages_.push_back({Regex("\\p{N}"), each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
    } else if (type == "Punctuation") {
      stages_.push_back({Regex(R"([!-/:-@\[-`{-~\p{P}])"), read_behavior(description)});
    } else if (type == "Whitespace") {
      stages_.push_back({Regex(fmt::format(R"([{0}]+|[^{0}\s]+)", kRustWord)), SplitBehavior::kRemoved, true});
    } else if (type == "WhitespaceSplit") {
      stages_.push_back({Regex("\\s"), SplitBehavior::kRemoved});
    } else if (type == "ByteLevel") {
      add_byte_level(description);
    } else {
      fail(ErrorCode::kUnsupported,
           "{} {} is not supported (only Sequence, Split, Digits, Punctuation, Whitespace, WhitespaceSplit and ByteLevel "
           "are)",
           kWhere, in_quotes(type));
    }
  }

  void add_byte_level(const nlohmann::json& description) {
    byte_level_ = true;
    const bool prefix = json_read::get_or(description, "add_prefix_space", true, kWhere);
    // Without GPT-2's pattern the whole piece is the match.
    if (json_read::get_or(description, "use_regex", true, kWhere))
      stages_.push_back({Regex(kGpt2), SplitBehavior::kIsolated, false, prefix});
    else if (prefix)
      stages_.push_back({Regex(R"([\s\S]+)"), SplitBehavior::kIsolated, false, true});
  }

  std::vector<SplitStage> stages_;
  std::optional<Metaspace> metaspace_;
  bool byte_level_ = false, of_characters_ = false;
};

}  // namespace

std::vector<SplitStage> read_pre_tokenizer(const nlohmann::json& description) { return Reader().run(description); }

CharacterStages read_character_stages(const nlohmann::json& description) { return Reader().run_of_characters(description); }

void split(const SplitStage& stage, std::string_view text, RegexScratch& scratch, std::vector<PieceRange>& out) {
  struct Part {
    PieceRange range;
    bool match;
  };
  std::vector<Part> parts;  // matches and what lies between them, all of the text
  std::size_t done = 0;
  stage.pattern.for_each(text, scratch, [&](Regex::Match match) {
    if (done < match.begin) parts.push_back({{done, match.begin}, stage.invert});
    parts.push_back({{match.begin, match.end}, !stage.invert});
    done = match.end;
  });
  if (done < text.size()) parts.push_back({{done, text.size()}, stage.invert});

  const std::size_t first = out.size();
  bool previous = false;
  switch (stage.behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) out.push_back(part.range);
      break;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts)
        if (!part.match) out.push_back(part.range);
      break;
    case SplitBehavior::kContiguous:
      for (const Part& part : parts) {
        if (part.match == previous && out.size() > first)
          out.back().end = part.range.end;
        else
          out.push_back(part.range);
        previous = part.match;
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Part& part : parts) {
        if (part.match && !previous && out.size() > first)
          out.back().end = part.range.end;
        else
          out.push_back(part.range);
        previous = part.match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->match && !previous && out.size() > first)
          out.back().begin = part->range.begin;
        else
          out.push_back(part->range);
        previous = part->match;
      }
      std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
      break;
  }
  std::erase_if(out, [](const PieceRange& piece) { return piece.begin == piece.end; });
}

}  // namespace dsmoe
