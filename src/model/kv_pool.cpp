#include "model/kv_pool.h"

#include <cstring>
#include <utility>

#include "core/device.h"
#include "core/fail.h"
#include "model/decode_graphs.h"
#include "ops/elementwise.h"

namespace dsmoe {

KvPool::KvPool(std::span<const KvLayout> layers, Index pages, DType dtype, Device device) : dtype_(dtype) {
  require(pages >= 0, "a KV cache of {} pages cannot be", pages);
  for (const KvLayout& layer : layers) {
    k_.emplace_back(dtype, Shape{pages * kPageTokens, layer.k_width}, device);
    v_.emplace_back(dtype, Shape{pages * kPageTokens, layer.v_width}, device);
  }
  references_.resize(static_cast<std::size_t>(pages));
  for (Index page = pages; page-- > 0;) free_.push_back(page);
}

std::int32_t& KvPool::count(Index page) {
  require(page >= 0 && page < pages(), "the KV cache has no page {}, it has {}", page, pages());
  std::int32_t& references = references_[static_cast<std::size_t>(page)];
  require(references > 0, "page {} of the KV cache is free; nobody holds it", page);
  return references;
}

Index KvPool::allocate() {
  require(!free_.empty(), "all {} pages of the KV cache are in use; use a larger context or fewer sequences", pages());
  const Index page = free_.back();
  free_.pop_back();
  references_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void KvPool::share(Index page) { ++count(page); }

void KvPool::release(Index page) {
  if (--count(page) == 0) free_.push_back(page);
}

Index KvPool::references(Index page) const {
  require(page >= 0 && page < pages(), "the KV cache has no page {}, it has {}", page, pages());
  return references_[static_cast<std::size_t>(page)];
}

DecodeGraphs& KvPool::graphs() {
  if (!graphs_) graphs_ = std::make_shared<DecodeGraphs>();
  return *graphs_;
}

void KvPool::copy(Context& ctx, Index from, Index to, Index tokens) {
  if (on_copy_) on_copy_(from, to, tokens);
  const Index a = from * kPageTokens, b = to * kPageTokens;
  for (std::vector<Tensor>* tensors : {&k_, &v_}) {
    for (Tensor& x : *tensors) {
      if (x.numel() == 0) continue;  // latent attention has no values
      Tensor rows = x.rows(b, b + tokens);
      const Tensor source = x.rows(a, a + tokens);
      if (!is_quantized(dtype_))
        ops::convert(ctx, source, rows);
      else if (x.device() == Device::kCpu)
        std::memcpy(rows.raw_mutable(), source.raw(), rows.bytes());
      else
        device::copy(rows.raw_mutable(), Device::kCuda, source.raw(), Device::kCuda, rows.bytes(), ctx.stream());
    }
  }
}

KvSequence::KvSequence(std::shared_ptr<KvPool> pool, Index context, std::span<const Index> pages, Index length)
    : KvSequence(std::move(pool), context) {
  require(KvPool::pages_for(length) == static_cast<Index>(pages.size()), "{} tokens are not in {} pages", length,
          pages.size());
  for (const Index page : pages) {
    pool_->share(page);
    pages_.push_back(page);
  }
  length_ = length;
}

KvSequence::KvSequence(KvSequence&& other) noexcept
    : pool_(other.pool_),
      pages_(std::exchange(other.pages_, {})),
      length_(std::exchange(other.length_, 0)),
      context_(other.context_) {}

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  clear();
  pool_ = other.pool_;
  pages_ = std::exchange(other.pages_, {});
  context_ = other.context_;
  length_ = std::exchange(other.length_, 0);
  return *this;
}

void KvSequence::clear() {
  for (const Index page : pages_) pool_->release(page);
  pages_.clear();
  length_ = 0;
}

std::vector<Index> KvSequence::tiles() const {
  std::vector<Index> rows;
  rows.reserve(pages_.size());
  for (const Index page : pages_) rows.push_back(page * KvPool::kPageTokens);
  return rows;
}

// Whether the next token would go into a page that others hold, too.
bool KvSequence::last_page_is_shared() const {
  const auto last = static_cast<std::size_t>(length_ / KvPool::kPageTokens);
  return last < pages_.size() && pool_->references(pages_[last]) > 1;
}

Index KvSequence::pages_needed(Index tokens) const {
  if (tokens == 0) return 0;
  const Index more = KvPool::pages_for(length_ + tokens) - static_cast<Index>(pages_.size());
  return std::max<Index>(0, more) + (last_page_is_shared() ? 1 : 0);
}

void KvSequence::reserve(Context& ctx, Index tokens) {
  require(tokens >= 0, "room for {} tokens was asked for", tokens);
  const Index needed = pages_needed(tokens);
  require(needed <= pool_->free_pages(),
          "{} tokens need {} pages of the KV cache, of its {} pages {} are free; use a larger context or fewer sequences",
          tokens, needed, pool_->pages(), pool_->free_pages());
  if (tokens > 0 && last_page_is_shared()) {
    Index& last = pages_[static_cast<std::size_t>(length_ / KvPool::kPageTokens)];
    const Index own = pool_->allocate();
    pool_->copy(ctx, last, own, length_ % KvPool::kPageTokens);
    pool_->release(std::exchange(last, own));
  }
  while (static_cast<Index>(pages_.size()) < KvPool::pages_for(length_ + tokens)) pages_.push_back(pool_->allocate());
}

void KvSequence::advance(Index tokens) {
  const Index room = static_cast<Index>(pages_.size()) * KvPool::kPageTokens - length_;
  require(tokens >= 0 && tokens <= room, "{} tokens were added where there is room for {}", tokens, room);
  length_ += tokens;
}

void KvSequence::truncate(Index length) {
  require(length >= 0 && length <= length_, "cannot go back to {} tokens of {}", length, length_);
  while (static_cast<Index>(pages_.size()) > KvPool::pages_for(length)) {
    pool_->release(pages_.back());
    pages_.pop_back();
  }
  length_ = length;
}

KvSequence KvSequence::fork(Index length) const {
  require(length >= 0 && length <= length_, "cannot share the first {} tokens of {}", length, length_);
  return KvSequence(pool_, context_, pages().first(static_cast<std::size_t>(KvPool::pages_for(length))), length);
}

}  // namespace dsmoe
