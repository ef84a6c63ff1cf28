// Keys and values of texts that were run, for requests that begin alike: a chat that grows, a system prompt that many
// share. A tree of the pool's pages. What a page holds depends on all tokens before it, so a node is the tokens of one page
// below those of the page before; a text's last page may be part of one, and is a leaf. A request takes whole pages, and of
// one page more the tokens that it has in common with it: the pool copies that page when the request goes on
// (KvSequence::reserve). Bits do not depend on whether something was found.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/kv_pool.h"

namespace dsmoe::infer {

class PrefixCache {
 public:
  explicit PrefixCache(std::shared_ptr<KvPool> pool) : pool_(std::move(pool)) {}
  ~PrefixCache() { clear(); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // A sequence that begins with as many of these tokens as are here.
  KvSequence find(std::span<const std::int32_t> ids, Index context);
  // The tokens `ids` in the pages of a sequence that begins with them. Of the same tokens, the pages that are here stay.
  void store(const KvSequence& sequence, std::span<const std::int32_t> ids);

  Index pages() const { return pages_; }
  // Gives back up to so many pages that nobody else holds, least recently used first, and returns how many.
  Index evict(Index pages);
  Index evictable() const;
  void clear();

 private:
  using Ids = std::span<const std::int32_t>;
  struct Node {
    std::vector<std::int32_t> ids;  // up to a page of them; a node with children has a whole one
    Index page = -1;
    std::uint64_t used = 0;  // when
    std::vector<std::unique_ptr<Node>> children;
  };
  struct Match {
    Node* node = nullptr;
    std::size_t tokens = 0;  // that they have in common
  };
  static Match best(const Node& parent, Ids ids);
  Index evictable(const Node& node, bool& all) const;
  Node* oldest(Node& node, Node*& parent);  // of the leaves that can go, and its parent
  void release(Node& node);

  std::shared_ptr<KvPool> pool_;
  Node root_;
  Index pages_ = 0;
  std::uint64_t clock_ = 0;
};

}  // namespace dsmoe::infer
