#include "infer/prefix_cache.h"

#include <algorithm>

#include "core/fail.h"

namespace dsmoe::infer {

namespace {
constexpr auto kPage = static_cast<std::size_t>(KvPool::kPageTokens);
}

PrefixCache::Match PrefixCache::best(const Node& parent, Ids ids) {
  Match found;
  for (const auto& child : parent.children) {
    const auto most = std::min(child->ids.size(), ids.size());
    const auto end = std::mismatch(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(most), child->ids.begin()).first;
    const auto common = static_cast<std::size_t>(end - ids.begin());
    if (common > found.tokens) found = {child.get(), common};
  }
  return found;
}

KvSequence PrefixCache::find(Ids ids, Index context) {
  std::vector<Index> pages;
  Index length = 0;
  ++clock_;
  for (const Node* node = &root_; !ids.empty();) {
    const Match match = best(*node, ids);
    if (match.tokens == 0) break;
    match.node->used = clock_;
    pages.push_back(match.node->page);
    length += static_cast<Index>(match.tokens);
    if (match.tokens < kPage) break;
    ids = ids.subspan(kPage);
    node = match.node;
  }
  return KvSequence(pool_, context, pages, length);
}

void PrefixCache::store(const KvSequence& sequence, Ids ids) {
  require(static_cast<Index>(ids.size()) <= sequence.length(), "{} tokens are to be kept of a sequence of {}", ids.size(),
          sequence.length());
  ++clock_;
  Node* node = &root_;
  for (std::size_t i = 0; !ids.empty(); ++i) {
    const Ids part = ids.first(std::min(kPage, ids.size()));
    ids = ids.subspan(part.size());
    const Match match = best(*node, part);
    Node* next = match.node;
    if (match.tokens < part.size()) {
      const Index page = sequence.pages()[i];
      pool_->share(page);
      if (next && match.tokens == next->ids.size()) {  // a part of a page that has grown
        pool_->release(next->page);
      } else {
        next = node->children.emplace_back(std::make_unique<Node>()).get();
        ++pages_;
      }
      next->page = page;
      next->ids.assign(part.begin(), part.end());
    }
    next->used = clock_;
    node = next;
  }
}

Index PrefixCache::evictable() const {
  bool all = true;
  return evictable(root_, all);
}

// `all` becomes false when something below or at the node stays.
Index PrefixCache::evictable(const Node& node, bool& all) const {
  Index count = 0;
  bool whole = true;
  for (const auto& child : node.children) count += evictable(*child, whole);
  if (node.page >= 0) {
    whole = whole && pool_->references(node.page) == 1;
    count += whole;
  }
  all = all && whole;
  return count;
}

PrefixCache::Node* PrefixCache::oldest(Node& node, Node*& parent) {
  Node* found = nullptr;
  for (const auto& child : node.children) {
    Node* its_parent = &node;
    Node* leaf = child.get();
    if (!child->children.empty())
      leaf = oldest(*child, its_parent);
    else if (pool_->references(child->page) > 1)
      leaf = nullptr;
    if (leaf && (!found || leaf->used < found->used)) found = leaf, parent = its_parent;
  }
  return found;
}

Index PrefixCache::evict(Index pages) {
  Index freed = 0;
  for (Node* parent = nullptr; freed < pages; ++freed) {
    Node* const leaf = oldest(root_, parent);
    if (!leaf) break;
    release(*leaf);
    std::erase_if(parent->children, [&](const auto& child) { return child.get() == leaf; });
  }
  return freed;
}

void PrefixCache::release(Node& node) {
  for (const auto& child : node.children) release(*child);
  if (node.page < 0) return;
  pool_->release(node.page);
  --pages_;
}

void PrefixCache::clear() {
  release(root_);
  root_.children.clear();
}

}  // namespace dsmoe::infer
