#include "train/trained_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/fail.h"
#include "core/timeline.h"
#include "ops/elementwise.h"
#include "train/tensor_sums.h"

namespace dsmoe::train {

// Among ranks, what all of them have is one run per parameter: which spread parameters lie between two others (LoRA has all
// in one tensor) differs from rank to rank, and the runs are what ranks sum and send together.
std::vector<TrainedTensors::Run> TrainedTensors::runs_of(const std::vector<Entry>& entries) const {
  struct Part {
    Run run;
    const Entry* of;
  };
  std::vector<Part> parts;
  for (const Entry& e : entries)
    e.gradient.each_run([&](Index first, Index count) {
      parts.push_back({{first, count, e.trained, e.decay, e.spread}, &e});
    });
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.run.first < b.run.first; });
  std::vector<Run> merged;
  const Entry* before = nullptr;
  for (const auto& [r, of] : parts) {
    Run* const last = merged.empty() ? nullptr : &merged.back();
    if (last && last->first + last->count == r.first && last->trained == r.trained && last->decay == r.decay &&
        last->spread == r.spread && (!mesh_ || r.spread || of == before))
      last->count += r.count;
    else
      merged.push_back(r);
    before = of;
  }
  return merged;
}

Tensor TrainedTensors::part(const Tensor& t, Index first, Index count) {
  return t.numel() == count ? t : t.reshape({t.numel()}).rows(first, first + count);
}

void TrainedTensors::add(Context& ctx, std::vector<Entry> entries) {
  ctx_ = &ctx;
  std::vector<std::vector<Entry>> by_tensor;
  std::vector<const void*> known;
  for (Entry& e : entries) {
    const auto at = std::find(known.begin(), known.end(), e.weight.tensor.raw()) - known.begin();
    if (static_cast<std::size_t>(at) == known.size()) {
      known.push_back(e.weight.tensor.raw());
      by_tensor.emplace_back();
    }
    by_tensor[static_cast<std::size_t>(at)].push_back(std::move(e));
  }
  for (const std::vector<Entry>& group : by_tensor) add_tensor(ctx, group);
}

void TrainedTensors::add_tensor(Context& ctx, const std::vector<Entry>& entries) {
  const Tensor &weight = entries.front().weight.tensor, &gradient = entries.front().gradient.tensor;
  const std::vector<Run> runs = runs_of(entries);
  const Index stage = entries.front().stage;
  for (const Run& run : runs) {
    const Tensor all = part(gradient, run.first, run.count);
    if (shares_gradients())
      sums_.add_cleared(stage, all);
    else if (!run.trained || zero_)
      unused_.push_back(all);
  }
  if (std::none_of(entries.begin(), entries.end(), [](const Entry& e) { return e.trained; })) return;

  Storage s{.weight = weight, .in_model = false, .rounded = weight.dtype() != DType::kF32};
  s.in_model = entries.front().in_model && !s.rounded;
  Index numbers = 0;
  for (const Run& run : runs) {
    if (!run.trained) continue;
    parallel::Comm::Range mine{0, run.count};
    if (zero_) mine = group(run.spread).share(run.count);
    s.slices.push_back({run, run.first + mine.first, mine.count(), zero_ ? numbers : run.first});
    numbers += mine.count();
  }
  const Shape shape = zero_ ? Shape({numbers}) : weight.shape();
  s.m = ctx.zeros(DType::kF32, shape), s.v = ctx.zeros(DType::kF32, shape);
  if (shares_gradients()) s.gradient = ctx.zeros(DType::kF32, shape);
  if (!zero_) {
    s.master = ops::converted(ctx, weight, DType::kF32);
  } else if (s.rounded) {
    s.master = ctx.empty(DType::kF32, shape);
    keep_slices(s, ops::converted(ctx, weight, DType::kF32), s.master);
  }
  for (const Slice& slice : s.slices) {
    const auto own = [&](const Tensor& t) { return part(t, slice.at, slice.count); };
    const auto of = [&](const Tensor& t) { return part(t, slice.first, slice.count); };
    const Tensor share = shares_gradients() ? own(s.gradient) : Tensor();
    if (mesh_) sums_.add(group(slice.run.spread), stage, part(gradient, slice.run.first, slice.run.count), share);
    pieces_.push_back({zero_ && !s.rounded ? of(weight) : own(s.master), shares_gradients() ? share : of(gradient),
                       own(s.m), own(s.v), s.rounded ? of(weight) : Tensor(), slice.run.decay});
    piece_spread_.push_back(slice.run.spread);
    piece_stage_.push_back(stage);
    // Handles of one piece have one shape.
    ops::AdamTensor& p = pieces_.back();
    for (Tensor* t : {&p.gradient, &p.m, &p.v, &p.stored})
      if (t->numel() == p.weight.numel() && t->shape() != p.weight.shape()) *t = t->reshape(p.weight.shape());
  }
  storages_.push_back(std::move(s));
  for (const Entry& e : entries)
    if (e.trained) states_.push_back({e.name, storages_.size() - 1, e.weight, e.spread});
}

Index TrainedTensors::trained_numbers() const {
  std::int64_t same = 0, spread = 0;
  for (const Storage& s : storages_)
    for (const Slice& slice : s.slices) (slice.run.spread ? spread : same) += slice.run.count;
  if (mesh_) mesh_->experts->all_reduce(std::span(&spread, 1));
  return same + spread;
}

std::size_t TrainedTensors::bytes() const {
  std::size_t bytes = 0;
  for (const Storage& s : storages_) bytes += s.m.bytes() * (s.in_model ? 2 : 3) + s.gradient.bytes();
  return bytes;
}

Tensor TrainedTensors::gradient_square(Context& ctx) const {
  mark(ctx, "norm of the gradients");
  if (!mesh_) return ops::gradient_square(ctx, pieces_);
  double sums[2] = {0, 0};
  for (const bool spread : {false, true}) {
    std::vector<ops::AdamTensor> some;
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      if (piece_spread_[i] == spread) some.push_back(pieces_[i]);
    double& sum = sums[spread ? 1 : 0];
    const Tensor square = ctx.fetch(ops::gradient_square(ctx, some));
    sum = square.data<double>()[0];
    if (zero_) group(spread).all_reduce(std::span(&sum, 1));
    if (spread) mesh_->experts->all_reduce(std::span(&sum, 1));
  }
  Tensor all(DType::kF64, {1});
  all.data<double>()[0] = sums[0] + sums[1];
  return ctx.place(all);
}

void TrainedTensors::step(Context& ctx, const ops::AdamOptions& options, Index stage) {
  std::vector<ops::AdamTensor> some;
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    if (piece_stage_[i] == stage) some.push_back(pieces_[i]);
  ops::adamw(ctx, some, options);
}

void TrainedTensors::step(Context& ctx, const ops::AdamOptions& options) {
  mark(ctx, "AdamW");
  ops::adamw(ctx, pieces_, options);
  if (options.clear)
    for (Tensor& g : unused_) ctx.fill_zero(g);
  if (!zero_) return;
  for (const Storage& s : storages_)
    for (const Slice& slice : s.slices)
      all_gather_shares(ctx, group(slice.run.spread), part(s.weight, slice.run.first, slice.run.count));
}

// A tensor in the shape of the weight from the slices of all ranks.
Tensor TrainedTensors::whole(const Storage& s, const Tensor& slices) const {
  if (!zero_) return slices;
  const Tensor all = ctx_->zeros(DType::kF32, s.weight.shape());
  for (const Slice& slice : s.slices) {
    copy(*ctx_, slices.rows(slice.at, slice.at + slice.count), part(all, slice.first, slice.count));
    all_gather_shares(*ctx_, group(slice.run.spread), part(all, slice.run.first, slice.run.count));
  }
  return all;
}

void TrainedTensors::keep_slices(const Storage& s, const Tensor& whole, const Tensor& slices) const {
  for (const Slice& slice : s.slices)
    copy(*ctx_, part(whole, slice.first, slice.count), slices.rows(slice.at, slice.at + slice.count));
}

void TrainedTensors::each_name(
    const std::function<void(const std::string& name, const Shape& shape, bool spread)>& fn) const {
  for (std::size_t i = 0; i < storages_.size(); ++i)
    for (const State& state : states_) {
      if (state.storage != i) continue;
      for (const char* kind : {"master.", "m.", "v."})
        if (kind[1] != 'a' || !storages_[i].in_model) fn(kind + state.name, state.place.shape, state.spread);
    }
}

// `numbers` in this machine's memory, in the shape of the weight or, `sliced`, as the slices lie.
void TrainedTensors::each_part(const Storage& s, const State& state, const std::string& name, const Tensor& numbers,
                               bool sliced, const PartVisitor& fn) const {
  Index at = 0;  // in the file
  state.place.each_run([&](Index first, Index count) {
    auto slice = std::partition_point(s.slices.begin(), s.slices.end(),
                                      [&](const Slice& part) { return part.run.first + part.run.count <= first; });
    for (; slice != s.slices.end() && slice->run.first < first + count; ++slice) {
      const parallel::Comm::Range mine = group(slice->run.spread).share(slice->run.count);
      const Index begin = std::max(first, slice->run.first + mine.first),
                  end = std::min(first + count, slice->run.first + mine.last);
      if (begin >= end) continue;
      const Index here = sliced ? slice->at + begin - slice->first : begin;
      fn(name, at + begin - first,
         numbers.span<float>().subspan(static_cast<std::size_t>(here), static_cast<std::size_t>(end - begin)));
    }
    at += count;
  });
}

void TrainedTensors::each_part(const PartVisitor& fn) const {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    const Storage& s = storages_[i];
    const bool whole_master = !zero_ || !s.rounded;
    const Tensor master = s.in_model ? Tensor() : (zero_ && !s.rounded ? s.weight : s.master).to(Device::kCpu);
    const Tensor m = s.m.to(Device::kCpu), v = s.v.to(Device::kCpu);
    for (const State& state : states_) {
      if (state.storage != i) continue;
      if (!s.in_model) each_part(s, state, "master." + state.name, master, !whole_master, fn);
      each_part(s, state, "m." + state.name, m, zero_, fn);
      each_part(s, state, "v." + state.name, v, zero_, fn);
    }
  }
}

void TrainedTensors::each_state(const StateVisitor& fn, bool changes) const {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    const Storage& s = storages_[i];
    Tensor master = s.in_model            ? Tensor()
                    : zero_ && !s.rounded ? s.weight
                                          : whole(s, s.master),
           m = whole(s, s.m), v = whole(s, s.v);
    for (const State& state : states_) {
      if (state.storage != i) continue;
      if (!s.in_model) fn("master." + state.name, state.place.on(master), state.spread);
      fn("m." + state.name, state.place.on(m), state.spread);
      fn("v." + state.name, state.place.on(v), state.spread);
    }
    if (!changes || !zero_) continue;
    if (s.rounded) keep_slices(s, master, s.master);
    keep_slices(s, m, s.m);
    keep_slices(s, v, s.v);
  }
}

}  // namespace dsmoe::train
