#include "grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

#include "core/fail.h"

namespace dsmoe::grammar {

Vocabulary::Vocabulary(const std::vector<std::string>& tokens, std::vector<std::int32_t> end_tokens)
    : size_(tokens.size()), end_tokens_(std::move(end_tokens)) {
  std::sort(end_tokens_.begin(), end_tokens_.end());
  end_tokens_.erase(std::unique(end_tokens_.begin(), end_tokens_.end()), end_tokens_.end());
  for (const std::int32_t id : end_tokens_)
    require(id >= 0 && static_cast<std::size_t>(id) < size_, "the end token {} is not in the vocabulary of {}", id, size_);

  constexpr std::size_t kLongest = 0xFFFF;
  starts_.push_back(0);
  for (std::size_t i = 0; i < size_; ++i) {
    // A longer one cannot be chosen. No model has any: 128 spaces are the longest token of most.
    if (!is_end(static_cast<std::int32_t>(i)) && tokens[i].size() <= kLongest) text_ += tokens[i];
    require(text_.size() <= 0xFFFFFFFF, "the tokens of the vocabulary have more than 4 GiB of text");
    starts_.push_back(static_cast<std::uint32_t>(text_.size()));
    longest_ = std::max<std::size_t>(longest_, starts_[i + 1] - starts_[i]);
  }

  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < size_; ++i)
    if (starts_[i] != starts_[i + 1]) order.push_back(i);
  const auto text = [&](std::uint32_t id) { return bytes(static_cast<std::int32_t>(id)); };
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const int c = text(a).compare(text(b));  // compares bytes as unsigned ones
    return c != 0 ? c < 0 : a < b;
  });

  std::vector<std::uint32_t> path;  // nodes from the root to the last one
  const auto open = [&](std::uint8_t byte) {
    path.push_back(nodes());
    byte_.push_back(byte);
    depth_.push_back(static_cast<std::uint16_t>(path.size() - 1));
    first_id_.push_back(static_cast<std::uint32_t>(ids_.size()));
    end_.push_back(0);
  };
  const auto close_to = [&](std::size_t length) {
    for (; path.size() > length; path.pop_back()) end_[path.back()] = nodes();
  };
  open(0);
  std::string_view last;
  for (const std::uint32_t id : order) {
    const std::string_view token = text(id);
    const auto same =
        static_cast<std::size_t>(std::mismatch(token.begin(), token.end(), last.begin(), last.end()).first - token.begin());
    close_to(same + 1);
    for (std::size_t i = same; i < token.size(); ++i) open(static_cast<std::uint8_t>(token[i]));
    ids_.push_back(id);
    last = token;
  }
  close_to(0);
  first_id_.push_back(static_cast<std::uint32_t>(ids_.size()));
}

bool Vocabulary::is_end(std::int32_t id) const { return std::binary_search(end_tokens_.begin(), end_tokens_.end(), id); }

std::string_view Vocabulary::bytes(std::int32_t id) const {
  const auto i = static_cast<std::size_t>(id);
  return std::string_view(text_).substr(starts_[i], starts_[i + 1] - starts_[i]);
}

}  // namespace dsmoe::grammar
