#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/device.h"
#include "core/fault.h"
#include "core/options.h"
#include "core/threads.h"
#include "ops/backend.h"

namespace dsmoe {

void SamplerOptions::validate() const { validate_options(*this); }

}  // namespace dsmoe

namespace dsmoe::ops {

namespace {

constexpr Index kRowNumbers = sizeof(SampleRow) / sizeof(std::int32_t);
static_assert(sizeof(SampleRow) % sizeof(std::int32_t) == 0);

SampleRow row_of(const SamplerOptions& o) {
  SampleRow row;
  row.seed = o.seed;
  row.least_mass = static_cast<std::uint64_t>(std::ceil(static_cast<double>(o.min_p) * static_cast<double>(kOneMass)));
  if (o.temperature > 0)
    row.scale = static_cast<float>(
        std::min(1.4426950408889634 / o.temperature, static_cast<double>(std::numeric_limits<float>::max())));
  row.top_p = o.top_p;
  row.repetition = o.repetition_penalty, row.presence = o.presence_penalty, row.frequency = o.frequency_penalty;
  row.top_k = static_cast<std::int32_t>(std::min<Index>(o.top_k, kMostLogits));
  return row;
}

void write(Context& ctx, Tensor& to, Index row, const void* from, std::size_t bytes) {
  Tensor part = to.rows(row, row + 1);
  if (bytes == 0) return;
  if (to.device() == Device::kCpu)
    std::memcpy(part.raw_mutable(), from, bytes);
  else
    device::upload(part.raw_mutable(), from, bytes, ctx.stream());
}

void check(const Tensor& logits, const Sampling& s) {
  require(logits.rank() == 2 && logits.dtype() == DType::kF32 && logits.dim(0) == s.ids.numel() && logits.dim(1) > 0,
          "[sample] logits are {} {}, expected f32 [{}, V]", to_string(logits.dtype()), logits.shape(), s.ids.numel());
  require(logits.dim(1) <= kMostLogits, "[sample] a row has {} logits, at most {} are possible", logits.dim(1),
          kMostLogits);
}

void check_finite(std::span<const float> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (!std::isfinite(logits[i])) throw_logit_not_finite(static_cast<std::uint32_t>(i), logits[i]);
}

void apply_penalties(const SampleTask& t) {
  const auto exists = [&](std::int32_t id) { return id >= 0 && static_cast<std::size_t>(id) < t.logits.size(); };
  if (t.row.penalises()) {
    std::vector<std::int32_t> recent(t.recent.begin(), t.recent.end());
    std::sort(recent.begin(), recent.end());
    for (auto first = recent.begin(); first != recent.end();) {
      const auto last = std::upper_bound(first, recent.end(), *first);
      if (exists(*first)) {
        float& x = t.logits[static_cast<std::size_t>(*first)];
        x = penalised(t.row, x, static_cast<std::int32_t>(last - first));
      }
      first = last;
    }
  }
  for (const std::int32_t id : t.banned)
    if (exists(id)) t.logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
}

// choose(task, worker) for each row of tensors in this machine's memory.
template <class Choose>
void each_row(Context& ctx, Tensor& logits, Sampling& s, Choose choose) {
  auto* const rows = reinterpret_cast<SampleRow*>(s.rows.data<std::int32_t>());
  const auto width = static_cast<std::size_t>(logits.dim(1));
  ctx.pool().run(logits.dim(0), [&](Index r, int worker) {
    SampleRow& row = rows[r];
    std::int32_t* const ring = s.recent.data<std::int32_t>() + r * s.recent.dim(1);
    const SampleTask task{{logits.data<float>() + r * logits.dim(1), width},
                          row,
                          {ring, static_cast<std::size_t>(row.recent())},
                          {s.banned.data<std::int32_t>() + r * s.banned.dim(1), static_cast<std::size_t>(row.banned)}};
    check_finite(task.logits);
    apply_penalties(task);
    const std::int32_t id = choose(task, worker);
    row.drawn += row.scale > 0;
    if (row.window > 0) ring[row.history % row.window] = id;
    ++row.history;
    s.ids.data<std::int32_t>()[r] = id;
  });
}

}  // namespace

Sampling::Sampling(Context& ctx, Index count, Index most_recent, Index most_banned)
    : rows(ctx.zeros(DType::kI32, {count, kRowNumbers})),
      recent(ctx.zeros(DType::kI32, {count, most_recent})),
      banned(ctx.zeros(DType::kI32, {count, most_banned})),
      ids(ctx.zeros(DType::kI32, {count})) {}

void Sampling::start(Context& ctx, Index row, const SamplerOptions& options, std::span<const std::int32_t> history,
                     std::span<const std::int32_t> banned_tokens, Index chosen) {
  options.validate();
  require(static_cast<Index>(banned_tokens.size()) <= banned.dim(1), "{} tokens are not to be chosen, there is room for {}",
          banned_tokens.size(), banned.dim(1));
  SampleRow r = row_of(options);
  r.window = static_cast<std::int32_t>(std::min(options.repetition_window, recent.dim(1)));
  r.history = static_cast<std::int32_t>(std::min(history.size(), static_cast<std::size_t>(r.window)));
  r.banned = static_cast<std::int32_t>(banned_tokens.size());
  if (r.scale > 0) r.drawn = static_cast<std::uint64_t>(chosen);  // a greedy row draws none
  const std::span<const std::int32_t> last = history.last(static_cast<std::size_t>(r.history));
  write(ctx, rows, row, &r, sizeof r);
  write(ctx, recent, row, last.data(), last.size_bytes());
  write(ctx, banned, row, banned_tokens.data(), banned_tokens.size_bytes());
}

void sample(Context& ctx, Tensor& logits, Sampling& sampling) {
  check(logits, sampling);
  on_backend(
      ctx, [&] { each_row(ctx, logits, sampling, [](const SampleTask& t, int) { return ref::sample(t); }); },
      [&] {
        each_row(ctx, logits, sampling, [&](const SampleTask& t, int worker) {
          const std::size_t count = t.logits.size();
          auto* const codes = static_cast<std::uint64_t*>(ctx.scratch(worker, count * sizeof(std::uint64_t)));
          return cpu::sample(t, {codes, count});
        });
      },
      [&] { cuda::sample(ctx, logits, sampling); });
}

void copy_tokens(Context& ctx, const Tensor& chosen, std::span<const TokenCopy> pairs, Tensor& into) {
  require(chosen.dtype() == DType::kI32 && into.dtype() == DType::kI32, "[copy_tokens] tokens are i32, not {} and {}",
          to_string(chosen.dtype()), to_string(into.dtype()));
  for (const TokenCopy& p : pairs)
    require(p.from >= 0 && p.from < chosen.numel() && p.to >= 0 && p.to < into.numel(),
            "[copy_tokens] token {} of {} is to be number {} of {}", p.from, chosen.numel(), p.to, into.numel());
  if (pairs.empty()) return;
  const auto here = [&] {
    for (const TokenCopy& p : pairs) into.data<std::int32_t>()[p.to] = chosen.data<std::int32_t>()[p.from];
  };
  on_backend(ctx, here, here, [&] {
    static_assert(sizeof(TokenCopy) == 2 * sizeof(std::int32_t));
    const std::span numbers(reinterpret_cast<const std::int32_t*>(pairs.data()), 2 * pairs.size());
    cuda::copy_tokens(ctx, chosen, ctx.place(Tensor::view_of(numbers)), into);
  });
}

}  // namespace dsmoe::ops
