#include "infer/text_stream.h"

#include <algorithm>
#include <utility>

namespace dsmoe {

std::string TextStream::push(std::int32_t id) {
  const bool shown = std::find(shown_.begin(), shown_.end(), id) != shown_.end() && tokenizer_.is_special(id);
  return take(shown ? decoder_.finish() + std::string(tokenizer_.bytes(id)) : decoder_.push(id), false);
}

std::string TextStream::take(const std::string& text, bool last) {
  if (stopped_) return {};
  held_ += text;
  std::size_t cut = std::string::npos;
  for (const std::string& s : stop_)
    if (!s.empty()) cut = std::min(cut, held_.find(s));
  if (cut != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, {}).substr(0, cut);
  }
  // Hold back the longest end of the text that a stop string begins with.
  std::size_t hold = 0;
  for (const std::string& s : stop_) {
    for (std::size_t n = std::min(held_.size(), s.size()); n > hold && !last; --n) {
      if (held_.compare(held_.size() - n, n, s, 0, n) == 0) {
        hold = n;
        break;
      }
    }
  }
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, out.size());
  return out;
}

}  // namespace dsmoe
