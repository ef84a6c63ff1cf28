// A string that remembers which of its bytes came from a message. Whatever is done to it (in a chat template, by the
// normalizer) keeps that, so the text of a message cannot become control tokens.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dsmoe/tokenizer.h"

namespace dsmoe {

class MarkedText {
 public:
  MarkedText() = default;
  explicit MarkedText(std::string bytes) : bytes_(std::move(bytes)) {}  // nothing of it from a message
  static MarkedText of_message(std::string bytes);
  // `marks`: ascending and apart, as marks() gives them, in a text of which this is the part that begins at `origin`.
  static MarkedText part_of(std::string bytes, std::span<const TextRange> marks, std::size_t origin);

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  const std::vector<TextRange>& marks() const { return marks_; }  // from messages: ascending, apart, none empty
  bool marked(std::size_t begin, std::size_t end) const;          // some byte of the range is from a message

  MarkedText& append(const MarkedText& other, std::size_t begin = 0, std::size_t count = std::string::npos);
  MarkedText substr(std::size_t begin, std::size_t count = std::string::npos) const;
  // Changed byte by byte: as long as before, and every byte comes from where it came from.
  MarkedText with_bytes(std::string bytes) const;

 private:
  void mark(TextRange range);

  std::string bytes_;
  std::vector<TextRange> marks_;
};

// The first of ascending ranges that ends behind `at`.
std::span<const TextRange>::iterator first_behind(std::span<const TextRange> ranges, std::size_t at);

}  // namespace dsmoe
