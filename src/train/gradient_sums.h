// Sums of gradients over ranks, a stage of the model (TrainedTensors::Entry) after another, in the order in which backward
// is done with them. While the numbers of one stage travel, backward computes the next: each call of start() brings those
// before a piece further, at the same places on every rank, so what is called in which order does not depend on who is
// faster. Sums are per number and in the order of the ranks, so neither when they are made nor what travels together
// changes a bit.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"
#include "parallel/comm.h"

namespace dsmoe::train {

// How ranks that repeat each other share the work of an update.
struct Sharing {
  Index zero = 0;       // ZeRO: 1 shares out moments and master weights, 2 the gradients too
  bool overlap = true;  // gradients are summed while backward computes others
};

class GradientSums {
 public:
  GradientSums() = default;
  // `piece`: numbers that are summed at a time; those of the others are held beside them.
  explicit GradientSums(Sharing sharing, Index piece = Index{1} << 24) : sharing_(sharing), piece_(piece) {}

  // Contiguous f32 numbers of this rank; when all is done the sums of the group, of this rank's share of them with ZeRO.
  // `share`: with ZeRO 2, where this rank's share of the sums is added; the numbers themselves are then no more than a
  // place that passes take turns with.
  void add(parallel::Comm& group, Index stage, const Tensor& gradient, const Tensor& share);
  // Of a place that passes take turns with: it is cleared when its stage is done, on a CPU (a GPU's passes write it over).
  void add_cleared(Index stage, const Tensor& place) { cleared_[stage].push_back(place); }
  bool empty() const { return runs_.empty(); }

  // Before a pass: whether its sums are added to the shares of ZeRO 2, or written over them.
  void begin_pass(bool adds) { adds_ = adds; }
  // Backward is done with the stage.
  void start(Context& ctx, Index stage);
  // Of all stages, those too that were not started. A call of all ranks, like start().
  void finish(Context& ctx);

 private:
  struct Run {
    parallel::Comm* group;
    Tensor gradient, share;
  };
  // Some numbers that travel together: a part of one run, or small runs one after another in a tensor of their own.
  struct Piece {
    parallel::Comm* group;
    Tensor values;
    std::vector<parallel::Comm::Range> parts;  // of each rank, in values
    std::vector<const Run*> small;             // those that are in values; empty: a part of `run`
    const Run* run = nullptr;
    Index first_in_share = 0;  // of that part
    Tensor received = {};
    std::unique_ptr<parallel::Comm::Pending> pending = {};
  };
  struct Flight {
    Index stage;
    std::vector<Piece> pieces;
    bool summed = false;
  };

  bool whole() const { return sharing_.zero == 0; }
  void cut(const Run& run, std::vector<Piece>& pieces) const;
  Piece packed(Context& ctx, const std::vector<const Run*>& runs) const;
  template <class Fn>
  static void each_part(const Piece& piece, Fn fn);
  std::vector<Piece> pieces_of(Context& ctx, Index stage) const;
  void scatter(Context& ctx, Piece& piece) const;
  void sum(Context& ctx, Piece& piece) const;
  void gather(Context& ctx, Piece& piece) const;
  void put(Context& ctx, const Piece& piece) const;
  bool advance(Context& ctx, Flight& flight) const;
  void add_to_share(Context& ctx, const Tensor& sums, Tensor share) const;

  Sharing sharing_;
  Index piece_ = 1;
  bool adds_ = true;
  std::map<Index, std::deque<Run>> runs_;  // by stage; their places do not change
  std::map<Index, std::vector<Tensor>> cleared_;
  std::set<Index> started_;
  std::deque<Flight> flights_;  // the oldest first
};

}  // namespace dsmoe::train
