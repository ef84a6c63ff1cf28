// The tokens of a model as bytes, in a tree of their beginnings: what a grammar needs to know of a tokenizer. One serves
// all grammars.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::grammar {

class Vocabulary {
 public:
  // `tokens` by id. Tokens without bytes are never allowed: so control tokens are passed as "". The end tokens are allowed
  // where a text may end, and only there.
  Vocabulary(const std::vector<std::string>& tokens, std::vector<std::int32_t> end_tokens);

  std::size_t size() const { return size_; }
  std::size_t words() const { return (size_ + 63) / 64; }  // of a mask
  std::size_t longest() const { return longest_; }         // bytes of a token
  const std::vector<std::int32_t>& end_tokens() const { return end_tokens_; }
  bool is_end(std::int32_t id) const;
  std::string_view bytes(std::int32_t id) const;  // "" for tokens that are never allowed

  // The tree: node 0 is its root; nodes are numbered in the order of a walk that goes down first, children by their bytes.
  std::uint32_t nodes() const { return static_cast<std::uint32_t>(byte_.size()); }
  std::uint8_t byte(std::uint32_t node) const { return byte_[node]; }
  std::uint16_t depth(std::uint32_t node) const { return depth_[node]; }
  std::uint32_t end(std::uint32_t node) const { return end_[node]; }  // behind the last node below this one
  bool is_leaf(std::uint32_t node) const { return end_[node] == node + 1; }
  std::span<const std::uint32_t> tokens(std::uint32_t node) const {  // that end here
    return {ids_.data() + first_id_[node], ids_.data() + first_id_[node + 1]};
  }

 private:
  std::size_t size_ = 0, longest_ = 0;
  std::vector<std::int32_t> end_tokens_;
  std::string text_;                   // all tokens
  std::vector<std::uint32_t> starts_;  // of each token in it, and the end
  std::vector<std::uint8_t> byte_;
  std::vector<std::uint16_t> depth_;
  std::vector<std::uint32_t> end_, first_id_, ids_;
};

}  // namespace dsmoe::grammar
