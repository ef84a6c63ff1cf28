#include "train/trained_tensors.h"

#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "core/timeline.h"
#include "ops/elementwise.h"

namespace dsmoe::train {

namespace {

// Contiguous elements of a tensor that are trained the same way.
struct Run {
  Index first, count;
  bool trained, decay;
};

std::vector<Run> runs_of(const std::vector<TrainedTensors::Entry>& entries) {
  std::vector<Run> runs;
  for (const TrainedTensors::Entry& e : entries)
    e.gradient.each_run([&](Index first, Index count) { runs.push_back({first, count, e.trained, e.decay}); });
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
  std::vector<Run> merged;
  for (const Run& r : runs) {
    Run* const last = merged.empty() ? nullptr : &merged.back();
    if (last && last->first + last->count == r.first && last->trained == r.trained && last->decay == r.decay)
      last->count += r.count;
    else
      merged.push_back(r);
  }
  return merged;
}

Tensor part(const Tensor& t, const Run& run) {
  return t.numel() == run.count ? t : t.reshape({t.numel()}).rows(run.first, run.first + run.count);
}

}  // namespace

void TrainedTensors::add(Context& ctx, std::vector<Entry> entries) {
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
  for (const Run& run : runs)
    if (!run.trained) unused_.push_back(part(gradient, run));
  if (std::none_of(entries.begin(), entries.end(), [](const Entry& e) { return e.trained; })) return;

  const bool rounded = weight.dtype() != DType::kF32;
  storages_.push_back({ops::converted(ctx, weight, DType::kF32), ctx.zeros(DType::kF32, weight.shape()),
                       ctx.zeros(DType::kF32, weight.shape()), entries.front().in_model && !rounded});
  const Storage& s = storages_.back();
  for (const Run& run : runs)
    if (run.trained)
      pieces_.push_back({part(s.master, run), part(gradient, run), part(s.m, run), part(s.v, run),
                         rounded ? part(weight, run) : Tensor(), run.decay});
  for (const Entry& e : entries)
    if (e.trained) states_.push_back({e.name, storages_.size() - 1, e.weight});
}

Index TrainedTensors::trained_numbers() const {
  Index n = 0;
  for (const ops::AdamTensor& t : pieces_) n += t.weight.numel();
  return n;
}

std::size_t TrainedTensors::bytes() const {
  std::size_t bytes = 0;
  for (const Storage& s : storages_) bytes += s.m.bytes() * (s.in_model ? 2 : 3);
  return bytes;
}

double TrainedTensors::gradient_norm(Context& ctx) const {
  mark(ctx, "norm of the gradients");
  const Tensor square = ctx.fetch(ops::gradient_square(ctx, pieces_));
  return std::sqrt(square.data<double>()[0]);
}

void TrainedTensors::step(Context& ctx, const ops::AdamOptions& options) {
  mark(ctx, "AdamW");
  ops::adamw(ctx, pieces_, options);
  if (!options.clear) return;
  for (Tensor& g : unused_) ctx.fill_zero(g);
}

void TrainedTensors::each_state(const std::function<void(const std::string& name, const TensorView& view)>& fn) const {
  for (const State& state : states_) {
    const Storage& s = storages_[state.storage];
    if (!s.in_model) fn("master." + state.name, state.place.on(s.master));
    fn("m." + state.name, state.place.on(s.m));
    fn("v." + state.name, state.place.on(s.v));
  }
}

}  // namespace dsmoe::train
