// A model whose experts are spread over ranks, of which the first alone knows what is to be run: a server's. It leads: the
// others hear of each pass before it begins, and of what happens to the KV cache between passes, and do the same. Their
// caches then have the same contents, and every rank computes all but the experts of the others.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dsmoe/error.h"
#include "model/forward_batch.h"
#include "parallel/comm.h"

namespace dsmoe {

class Transformer;

class PassLeader {
 public:
  explicit PassLeader(std::shared_ptr<parallel::Comm> world) : state_(std::make_shared<State>(std::move(world))) {}

  void new_pool(Index tokens, DType dtype) const;  // the one that all later passes are of
  void copy_page(Index from, Index to, Index tokens) const;
  void run(const ForwardBatch& batch) const;
  void end() const;  // the others return from follow_passes()
  // A pass failed here in the middle, and the others wait in it: from now on every call is refused with this, since what
  // they would take for the rest of that pass is something else. Only the end of all ranks helps.
  void lose(const Error& why) const { state_->lost = why; }
  const std::optional<Error>& lost() const { return state_->lost; }

 private:
  struct State {  // copies of a leader have one
    explicit State(std::shared_ptr<parallel::Comm> comm) : world(std::move(comm)) {}
    std::shared_ptr<parallel::Comm> world;
    std::optional<Error> lost;
  };
  void tell(const std::vector<Index>& numbers) const;
  std::shared_ptr<State> state_;
};

// What the leader says, until it ends. A pass that fails for its numbers fails there too, where somebody hears of it.
void follow_passes(Context& ctx, const Transformer& model, parallel::Comm& world);

}  // namespace dsmoe
