#include "tokenizer/marked_text.h"

#include <algorithm>

#include "core/fail.h"

namespace dsmoe {

std::span<const TextRange>::iterator first_behind(std::span<const TextRange> ranges, std::size_t at) {
  return std::upper_bound(ranges.begin(), ranges.end(), at,
                          [](std::size_t place, const TextRange& range) { return place < range.end; });
}

MarkedText MarkedText::of_message(std::string bytes) {
  MarkedText text(std::move(bytes));
  text.mark({0, text.bytes_.size()});
  return text;
}

MarkedText MarkedText::part_of(std::string bytes, std::span<const TextRange> marks, std::size_t origin) {
  MarkedText text(std::move(bytes));
  const std::size_t end = origin + text.size();
  for (auto range = first_behind(marks, origin); range != marks.end() && range->begin < end; ++range)
    text.mark({std::max(range->begin, origin) - origin, std::min(range->end, end) - origin});
  return text;
}

void MarkedText::mark(TextRange range) {
  if (range.begin == range.end) return;
  if (!marks_.empty() && marks_.back().end == range.begin)
    marks_.back().end = range.end;
  else
    marks_.push_back(range);
}

bool MarkedText::marked(std::size_t begin, std::size_t end) const {
  const std::span<const TextRange> ranges(marks_);
  const auto range = first_behind(ranges, begin);
  return range != ranges.end() && range->begin < end;
}

MarkedText& MarkedText::append(const MarkedText& other, std::size_t begin, std::size_t count) {
  const std::size_t end = begin + std::min(count, other.size() - begin), to = size();
  bytes_.append(other.bytes_, begin, end - begin);
  const std::span<const TextRange> ranges(other.marks_);
  for (auto range = first_behind(ranges, begin); range != ranges.end() && range->begin < end; ++range)
    mark({to + std::max(range->begin, begin) - begin, to + std::min(range->end, end) - begin});
  return *this;
}

MarkedText MarkedText::substr(std::size_t begin, std::size_t count) const {
  MarkedText out;
  out.append(*this, begin, count);
  return out;
}

MarkedText MarkedText::with_bytes(std::string bytes) const {
  invariant(bytes.size() == size(), "a text changed its length");
  MarkedText out(std::move(bytes));
  out.marks_ = marks_;
  return out;
}

}  // namespace dsmoe
