// What is done to the text before it is cut up: the "normalizer" of tokenizer.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/marked_text.h"
#include "tokenizer/regex.h"

namespace dsmoe {

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(const nlohmann::json& description);  // null for none
  bool empty() const { return steps_.empty(); }
  MarkedText apply(MarkedText text, RegexScratch& scratch) const;

 private:
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Prepend {
    std::string content;
  };
  struct Strip {
    bool left, right;
  };
  struct Compose {};  // Unicode's form NFC
  void add(const nlohmann::json& description, int depth);
  static MarkedText run(const Replace& step, const MarkedText& text, RegexScratch& scratch);
  static MarkedText run(const Prepend& step, const MarkedText& text, RegexScratch& scratch);
  static MarkedText run(const Strip& step, const MarkedText& text, RegexScratch& scratch);
  static MarkedText run(const Compose& step, const MarkedText& text, RegexScratch& scratch);

  std::vector<std::variant<Replace, Prepend, Strip, Compose>> steps_;
};

// {"Regex": "..."} or {"String": "..."}.
Regex read_pattern(const nlohmann::json& owner, std::string_view where);

}  // namespace dsmoe
