// A model whose experts are spread over ranks, of which the first alone knows what is to be run: a server's. It leads: the
// others hear of each pass before it begins, and of what happens to the KV cache between passes, and do the same. Their
// caches then have the same contents, and every rank computes all but the experts of the others.
#pragma once

#include <memory>
#include <vector>

#include "model/forward_batch.h"
#include "parallel/comm.h"

namespace dsmoe {

class Transformer;

class PassLeader {
 public:
  explicit PassLeader(std::shared_ptr<parallel::Comm> world) : world_(std::move(world)) {}

  void new_pool(Index tokens, DType dtype) const;  // the one that all later passes are of
  void copy_page(Index from, Index to, Index tokens) const;
  void run(const ForwardBatch& batch) const;
  void end() const;  // the others return from follow_passes()
  // A pass failed here in the middle, and the others wait in it: from now on every call is refused, since what they would
  // take for the rest of that pass is something else.
  void lose() const { lost_ = true; }

 private:
  void tell(const std::vector<Index>& numbers) const;
  mutable bool lost_ = false;
  std::shared_ptr<parallel::Comm> world_;
};

// What the leader says, until it ends. A pass that fails for its numbers fails there too, where somebody hears of it.
void follow_passes(Context& ctx, const Transformer& model, parallel::Comm& world);

}  // namespace dsmoe
