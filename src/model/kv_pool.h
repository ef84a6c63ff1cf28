// The keys (after rotation) and values of the tokens seen so far, for any number of sequences. Memory is cut into pages of
// one attention tile; a sequence is a list of pages, in any order, and sequences that begin alike may share pages: no bit
// of a result depends on which pages they are. A pool and its sequences serve one caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"
#include "ops/slice.h"

namespace dsmoe {

class DecodeGraphs;

// What a layer's attention keeps of a token: rows of two tensors.
struct KvLayout {
  Index k_width = 0, v_width = 0;  // v_width 0: values are a part of the keys
  Index head = 0;                  // numbers of a head, which are whole blocks of a quantized cache
};

class KvPool {
 public:
  static constexpr Index kPageTokens = ops::kAttentionTile;
  static constexpr Index pages_for(Index tokens) { return ops::Slice::tiles_of(tokens); }

  // Address space for all pages is taken at once, so that a layer's pages are rows of one tensor. On the CPU the system
  // gives memory to a page when it is first written, and pages are handed out lowest first.
  KvPool(std::span<const KvLayout> layers, Index pages, DType dtype, Device device = Device::kCpu);

  Index pages() const { return static_cast<Index>(references_.size()); }
  Index free_pages() const { return static_cast<Index>(free_.size()); }
  Index layers() const { return static_cast<Index>(k_.size()); }
  DType dtype() const { return dtype_; }
  Tensor& k(Index layer) { return k_[static_cast<std::size_t>(layer)]; }  // [pages * kPageTokens, k_width]
  Tensor& v(Index layer) { return v_[static_cast<std::size_t>(layer)]; }  // [pages * kPageTokens, v_width]

  // A page belongs to those who hold a reference. KvSequence does this for its pages; a cache of prefixes may do the same.
  Index allocate();          // a free page, with one reference; an Error when there is none
  void share(Index page);    // one reference more
  void release(Index page);  // one less; a page without any is free again
  Index references(Index page) const;
  DecodeGraphs& graphs();                                       // captured passes over these pages
  void copy(Context& ctx, Index from, Index to, Index tokens);  // the first `tokens` rows of a page, in all layers
  // Called before each copy().
  void on_copy(std::function<void(Index from, Index to, Index tokens)> call) { on_copy_ = std::move(call); }

 private:
  std::int32_t& count(Index page);

  DType dtype_;
  std::vector<Tensor> k_, v_;
  std::vector<std::int32_t> references_;  // of each page
  std::vector<Index> free_;               // the next one at the end
  std::shared_ptr<DecodeGraphs> graphs_;
  std::function<void(Index from, Index to, Index tokens)> on_copy_;
};

// One sequence in a pool; gives its pages back when it goes.
class KvSequence {
 public:
  // `context`: the positions that the sequence is opened for. Dynamic rope turns by it, so it is fixed from the first token
  // on; other models do not look at it. 0: as many as the model was trained for.
  explicit KvSequence(std::shared_ptr<KvPool> pool, Index context = 0) : pool_(std::move(pool)), context_(context) {}
  // One that begins with `length` tokens in pages that somebody holds.
  KvSequence(std::shared_ptr<KvPool> pool, Index context, std::span<const Index> pages, Index length);
  ~KvSequence() { clear(); }
  KvSequence(KvSequence&& other) noexcept;
  KvSequence& operator=(KvSequence&& other) noexcept;

  KvPool& pool() const { return *pool_; }
  Index length() const { return length_; }  // tokens that are in it
  Index context() const { return context_; }
  std::span<const Index> pages() const { return pages_; }
  std::vector<Index> tiles() const;  // the rows of the pool at which its pages begin

  // Appending is two steps, so that a pass that fails leaves the sequence as it was: room for tokens after the last one,
  // then, once their keys and values are stored in all layers, a greater length. Room is new pages, and a copy of the last
  // one if it is shared and has tokens. Without enough free pages this is an Error that changes nothing.
  void reserve(Context& ctx, Index tokens);
  void advance(Index tokens);
  Index pages_needed(Index tokens) const;  // that reserve() would take from the pool

  void truncate(Index length);  // forgets all but the first tokens, and gives back pages that hold none of them
  // A sequence that begins with the first `length` tokens of this one, in the same pages.
  KvSequence fork(Index length) const;

 private:
  void clear();
  bool last_page_is_shared() const;

  std::shared_ptr<KvPool> pool_;
  std::vector<Index> pages_;
  Index length_ = 0;
  Index context_ = 0;
};

}  // namespace dsmoe
