#include "train/gradient_sums.h"

#include <algorithm>

#include "core/timeline.h"
#include "ops/elementwise.h"
#include "train/tensor_sums.h"

namespace dsmoe::train {

using parallel::Bytes;
using parallel::Comm;
using parallel::ConstBytes;

namespace {

constexpr Index kTogether = 1 << 18;  // numbers of a run that travels with others

Tensor in_a_row(const Tensor& t) { return t.reshape({t.numel()}); }

Bytes bytes_at(Tensor t) { return {static_cast<std::byte*>(t.raw_mutable()), t.bytes()}; }

Tensor rows_of(const Tensor& values, const Comm::Range& range) { return values.rows(range.first, range.last); }

}  // namespace

void GradientSums::add(Comm& group, Index stage, const Tensor& gradient, const Tensor& share) {
  runs_[stage].push_back({&group, in_a_row(gradient), share});
}

// Pieces of a run have a part of each rank's share.
void GradientSums::cut(const Run& run, std::vector<Piece>& pieces) const {
  Comm& group = *run.group;
  const Index numbers = run.gradient.numel(), largest = (numbers + group.size() - 1) / group.size();
  const Index most = std::max<Index>(1, piece_ / group.size());
  for (Index first = 0; first < largest; first += most) {
    Piece piece{.group = &group, .values = run.gradient, .parts = {}, .small = {}, .run = &run, .first_in_share = first};
    for (int r = 0; r < group.size(); ++r) {
      const Comm::Range share = group.share(numbers, r);
      const Index begin = std::min(share.first + first, share.last);
      piece.parts.push_back({begin, std::min(begin + most, share.last)});
    }
    pieces.push_back(std::move(piece));
  }
}

// fn(run, numbers of the run, where they are in the piece's values, rank), for each rank's share of each run.
template <class Fn>
void GradientSums::each_part(const Piece& piece, Fn fn) {
  Index at = 0;
  for (int r = 0; r < piece.group->size(); ++r)
    for (const Run* const run : piece.small) {
      const Comm::Range share = piece.group->share(run->gradient.numel(), r);
      fn(*run, share, piece.values.rows(at, at + share.count()), r);
      at += share.count();
    }
}

// The shares of rank 0 of all runs, then those of rank 1, ...
GradientSums::Piece GradientSums::packed(Context& ctx, const std::vector<const Run*>& runs) const {
  Piece piece{.group = runs.front()->group, .values = {}, .parts = {}, .small = runs};
  Index at = 0;
  for (int r = 0; r < piece.group->size(); ++r) {
    const Index first = at;
    for (const Run* const run : runs) at += piece.group->share(run->gradient.numel(), r).count();
    piece.parts.push_back({first, at});
  }
  piece.values = ctx.empty(DType::kF32, {at});
  each_part(piece, [&](const Run& run, const Comm::Range& share, const Tensor& there, int) {
    copy(ctx, rows_of(run.gradient, share), there);
  });
  return piece;
}

std::vector<GradientSums::Piece> GradientSums::pieces_of(Context& ctx, Index stage) const {
  std::vector<Piece> pieces;
  const auto found = runs_.find(stage);
  if (found == runs_.end()) return pieces;
  std::vector<std::pair<Comm*, std::vector<const Run*>>> small;  // by group, in the order of the runs
  for (const Run& run : found->second) {
    if (run.group->alone() && !run.share.numel()) continue;  // it is its own sum
    if (run.group->alone() || run.gradient.numel() >= kTogether) {
      cut(run, pieces);
      continue;
    }
    auto at = std::find_if(small.begin(), small.end(), [&](const auto& s) { return s.first == run.group; });
    if (at == small.end()) at = small.insert(small.end(), {run.group, {}});
    at->second.push_back(&run);
  }
  for (const auto& [group, runs] : small) pieces.push_back(packed(ctx, runs));
  return pieces;
}

// This rank's part of all ranks' numbers.
void GradientSums::scatter(Context& ctx, Piece& piece) const {
  Comm& group = *piece.group;
  if (group.alone()) return;
  const Comm::Range mine = piece.parts[static_cast<std::size_t>(group.rank())];
  piece.received = ctx.empty(DType::kF32, {group.size(), mine.count()});
  std::vector<ConstBytes> to;
  std::vector<Bytes> from;
  for (Index r = 0; r < group.size(); ++r) {
    to.push_back(bytes_at(rows_of(piece.values, piece.parts[static_cast<std::size_t>(r)])));
    from.push_back(bytes_at(piece.received.rows(r, r + 1)));
  }
  piece.pending = group.start_exchange(ctx, to, from);
  if (sharing_.overlap) piece.pending->meanwhile();
}

void GradientSums::sum(Context& ctx, Piece& piece) const {
  if (!piece.pending) return;
  piece.pending->wait();
  piece.pending.reset();
  Tensor mine = rows_of(piece.values, piece.parts[static_cast<std::size_t>(piece.group->rank())]);
  ops::add_up(ctx, piece.received, mine);
  piece.received = {};
}

// The sums of all ranks' parts.
void GradientSums::gather(Context& ctx, Piece& piece) const {
  Comm& group = *piece.group;
  std::vector<Bytes> from;
  for (const Comm::Range& part : piece.parts) from.push_back(bytes_at(rows_of(piece.values, part)));
  const std::vector<ConstBytes> to(from.size(), from[static_cast<std::size_t>(group.rank())]);
  piece.pending = group.start_exchange(ctx, to, from);
  if (sharing_.overlap) piece.pending->meanwhile();
}

void GradientSums::add_to_share(Context& ctx, const Tensor& sums, Tensor share) const {
  if (sums.numel() == 0) return;
  adds_ ? ops::add(ctx, sums, share) : copy(ctx, sums, share);
}

// Where the sums belong.
void GradientSums::put(Context& ctx, const Piece& piece) const {
  const int me = piece.group->rank();
  if (piece.run) {
    if (!piece.run->share.numel()) return;
    const Tensor sums = rows_of(piece.values, piece.parts[static_cast<std::size_t>(me)]);
    add_to_share(ctx, sums, piece.run->share.rows(piece.first_in_share, piece.first_in_share + sums.numel()));
    return;
  }
  each_part(piece, [&](const Run& run, const Comm::Range& share, const Tensor& here, int r) {
    if (r != me && !whole()) return;
    if (run.share.numel() || sharing_.zero == 2)
      add_to_share(ctx, here, run.share);
    else
      copy(ctx, here, rows_of(run.gradient, share));
  });
}

// One way further; true at the end.
bool GradientSums::advance(Context& ctx, Flight& flight) const {
  for (Piece& piece : flight.pieces) {
    if (!flight.summed) {
      sum(ctx, piece);
      if (whole()) gather(ctx, piece);
    } else if (piece.pending) {
      piece.pending->wait();
      piece.pending.reset();
    }
  }
  const bool end = flight.summed || !whole();
  flight.summed = true;
  if (!end) return false;
  for (const Piece& piece : flight.pieces) put(ctx, piece);
  if (const auto places = cleared_.find(flight.stage); places != cleared_.end() && ctx.device() == Device::kCpu)
    for (Tensor& place : std::vector<Tensor>(places->second)) ctx.fill_zero(place);
  return true;
}

void GradientSums::start(Context& ctx, Index stage) {
  if (!started_.insert(stage).second) return;
  mark(ctx, "sums of gradients");
  // Those with ZeRO need one call to their end, the others two.
  for (std::size_t left = flights_.size(); left > 0; --left) {
    if (!advance(ctx, flights_.front())) flights_.push_back(std::move(flights_.front()));
    flights_.pop_front();
  }
  Flight now{stage, pieces_of(ctx, stage)};
  if (sharing_.overlap) {
    for (Piece& piece : now.pieces) scatter(ctx, piece);
    flights_.push_back(std::move(now));
    return;
  }
  for (Piece& piece : now.pieces) {  // one after another: less is held
    Flight alone{-1, {}};
    alone.pieces.push_back(std::move(piece));
    scatter(ctx, alone.pieces.front());
    while (!advance(ctx, alone)) continue;
  }
  now.pieces.clear();
  now.summed = true;
  advance(ctx, now);
}

void GradientSums::finish(Context& ctx) {
  std::vector<Index> stages;
  for (const auto& [stage, runs] : runs_) stages.push_back(stage);
  for (const auto& [stage, places] : cleared_) stages.push_back(stage);
  std::sort(stages.rbegin(), stages.rend());
  for (const Index stage : stages) start(ctx, stage);
  for (Flight& flight : flights_)
    while (!advance(ctx, flight)) continue;
  flights_.clear();
  started_.clear();
}

}  // namespace dsmoe::train
